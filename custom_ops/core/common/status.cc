#include "custom_ops/core/common/status.h"

#include <algorithm>
#include <cstring>
#include <system_error>

namespace tfring {

Status InvalidArgument(std::string message) {
  return Status(TFR_INVALID_ARGUMENT, std::move(message));
}

Status FailedPrecondition(std::string message) {
  return Status(TFR_FAILED_PRECONDITION, std::move(message));
}

Status Unavailable(std::string message) {
  return Status(TFR_UNAVAILABLE, std::move(message));
}

Status DeadlineExceeded(std::string message) {
  return Status(TFR_DEADLINE_EXCEEDED, std::move(message));
}

Status NotFound(std::string message) {
  return Status(TFR_NOT_FOUND, std::move(message));
}

Status ResourceExhausted(std::string message) {
  return Status(TFR_RESOURCE_EXHAUSTED, std::move(message));
}

Status Internal(std::string message) {
  return Status(TFR_INTERNAL, std::move(message));
}

std::string ErrnoText(int error_number) {
  return std::generic_category().message(error_number);
}

Status Annotate(const Status& status, const std::string& context) {
  if (status.ok()) return status;
  return Status(status.code(), StrCat(context, ": ", status.message()));
}

int Export(const Status& status, tfr_error* error) {
  if (error == nullptr) return status.code();
  const std::string& message = status.message();
  error->code = status.code();
  const size_t size = std::min(message.size(), sizeof(error->text) - 1);
  std::memcpy(error->text, message.data(), size);
  error->text[size] = '\0';
  if (size < message.size()) std::memcpy(error->text + size - 3, "...", 3);
  return status.code();
}

}  // namespace tfring
