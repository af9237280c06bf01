// A library that is loaded when it is needed, and may not be there.
#ifndef TFRING_CORE_NCCL_LIBRARY_H_
#define TFRING_CORE_NCCL_LIBRARY_H_

#include <string>
#include <vector>

#include "custom_ops/core/common/status.h"

namespace tfring {

// Stays loaded for the life of the process: others may use it, and libraries of
// this kind do not unload cleanly.
class Library {
 public:
  // Opens the first that can be opened: `path` alone unless it is empty, else
  // each of `names`. NOT_FOUND says what the loader said.
  static Status Open(const std::string& path,
                     const std::vector<std::string>& names, Library* out);

  // The name it was opened by.
  const std::string& name() const { return name_; }

  // Sets `*function`; FAILED_PRECONDITION names the symbol and the library.
  template <typename F>
  Status Require(const char* symbol, F** function) const {
    *function = reinterpret_cast<F*>(Find(symbol));
    return *function != nullptr ? Status::Ok() : Lacks(symbol);
  }
  // Null where the library has no such symbol.
  template <typename F>
  void LookUp(const char* symbol, F** function) const {
    *function = reinterpret_cast<F*>(Find(symbol));
  }

 private:
  void* Find(const char* symbol) const;
  Status Lacks(const char* symbol) const;

  void* handle_ = nullptr;
  std::string name_;
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_LIBRARY_H_
