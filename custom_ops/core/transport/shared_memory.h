// Anonymous memory that several processes map.
//
// It is a memfd: it has no name in any file system, is not bounded by the size
// of /dev/shm (64 MiB in many containers), and vanishes with its last user,
// also after SIGKILL. A peer opens it through /proc/<pid>/fd/<fd>, which the
// kernel allows to the same user only. Pages cost memory once touched.
#ifndef TFRING_CORE_TRANSPORT_SHARED_MEMORY_H_
#define TFRING_CORE_TRANSPORT_SHARED_MEMORY_H_

#include <cstdint>
#include <utility>

#include "custom_ops/core/common/status.h"

namespace tfring {

class SharedMemory {
 public:
  SharedMemory() = default;
  ~SharedMemory();
  SharedMemory(SharedMemory&& other) noexcept { *this = std::move(other); }
  SharedMemory& operator=(SharedMemory&& other) noexcept;
  SharedMemory(const SharedMemory&) = delete;
  SharedMemory& operator=(const SharedMemory&) = delete;

  // Zeroed memory of `size` bytes.
  static Status Create(uint64_t size, SharedMemory* out);
  // Maps the memory that process `pid` holds open as descriptor `fd`.
  static Status Open(int64_t pid, int fd, SharedMemory* out);

  char* data() const { return data_; }
  uint64_t size() const { return size_; }
  int fd() const { return fd_; }
  // Bytes of memory that all users together have touched.
  uint64_t ResidentBytes() const;

 private:
  Status Map(uint64_t size);

  int fd_ = -1;
  char* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace tfring

#endif  // TFRING_CORE_TRANSPORT_SHARED_MEMORY_H_
