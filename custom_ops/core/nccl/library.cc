#include "custom_ops/core/nccl/library.h"

#include <dlfcn.h>

namespace tfring {

Status Library::Open(const std::string& path,
                     const std::vector<std::string>& names, Library* out) {
  const std::vector<std::string> choices =
      path.empty() ? names : std::vector<std::string>{path};
  // One that the process has loaded already is taken before any other.
  for (const std::string& name : choices) {
    out->handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_NOLOAD);
    out->name_ = name;
    if (out->handle_ != nullptr) return Status::Ok();
  }
  static_cast<void>(dlerror());
  std::string said;
  for (const std::string& name : choices) {
    out->handle_ = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    out->name_ = name;
    if (out->handle_ != nullptr) return Status::Ok();
    const char* why = dlerror();
    if (said.empty()) said = why == nullptr ? name : why;
  }
  return NotFound(said);
}

void* Library::Find(const char* symbol) const {
  return handle_ == nullptr ? nullptr : dlsym(handle_, symbol);
}

Status Library::Lacks(const char* symbol) const {
  return FailedPrecondition(StrCat(name_, " has no ", symbol));
}

}  // namespace tfring
