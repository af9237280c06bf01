// The result of a call that can fail: a code and, unless OK, a reason.
#ifndef TFRING_CORE_COMMON_STATUS_H_
#define TFRING_CORE_COMMON_STATUS_H_

#include <sstream>
#include <string>
#include <utility>

#include "custom_ops/core/tfring.h"

namespace tfring {

// Joins anything that can be written to a stream.
template <typename... Args>
std::string StrCat(const Args&... args) {
  std::ostringstream text;
  static_cast<void>((text << ... << args));
  return text.str();
}

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(tfr_code code, std::string message)
      : code_(code), message_(std::move(message)) {}

  static Status Ok() { return Status(); }

  bool ok() const { return code_ == TFR_OK; }
  tfr_code code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  tfr_code code_ = TFR_OK;
  std::string message_;
};

Status InvalidArgument(std::string message);
Status FailedPrecondition(std::string message);
Status Unavailable(std::string message);
Status DeadlineExceeded(std::string message);
Status NotFound(std::string message);
Status ResourceExhausted(std::string message);
Status Internal(std::string message);

// The text of an errno value.
std::string ErrnoText(int error_number);

// Same code, message "context: former message". OK stays OK.
Status Annotate(const Status& status, const std::string& context);

// Writes `status` into `error`, which may be null, cutting a message that is
// too long. Returns the code.
int Export(const Status& status, tfr_error* error);

}  // namespace tfring

#define TFR_RETURN_IF_ERROR(expr)                                   \
  do {                                                              \
    if (::tfring::Status tfr_status_ = (expr); !tfr_status_.ok()) { \
      return tfr_status_;                                           \
    }                                                               \
  } while (false)

#endif  // TFRING_CORE_COMMON_STATUS_H_
