#include "custom_ops/core/transport/shared_memory.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>

namespace tfring {

SharedMemory::~SharedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

SharedMemory& SharedMemory::operator=(SharedMemory&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Status SharedMemory::Map(uint64_t size) {
  void* data = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (data == MAP_FAILED) {
    return ResourceExhausted(
        StrCat("cannot map ", size, " bytes of memory: ", ErrnoText(errno)));
  }
  data_ = static_cast<char*>(data);
  size_ = size;
  return Status::Ok();
}

Status SharedMemory::Create(uint64_t size, SharedMemory* out) {
  SharedMemory memory;
  memory.fd_ = memfd_create("tfring", MFD_CLOEXEC);
  if (memory.fd_ < 0 || fchmod(memory.fd_, 0600) != 0 ||
      ftruncate(memory.fd_, static_cast<off_t>(size)) != 0) {
    return ResourceExhausted(StrCat(
        "cannot create ", size, " bytes of shared memory: ", ErrnoText(errno)));
  }
  TFR_RETURN_IF_ERROR(memory.Map(size));
  *out = std::move(memory);
  return Status::Ok();
}

Status SharedMemory::Open(int64_t pid, int fd, SharedMemory* out) {
  SharedMemory memory;
  const std::string path = StrCat("/proc/", pid, "/fd/", fd);
  memory.fd_ = open(path.c_str(), O_RDWR | O_CLOEXEC);
  struct stat info;
  if (memory.fd_ < 0 || fstat(memory.fd_, &info) != 0) {
    return Unavailable(
        StrCat("cannot open the shared memory of process ", pid,
               " on this host (", ErrnoText(errno),
               "); do the ranks run as one user in one container? Setting "
               "TFRING_SHARED_MEMORY=0 makes them talk over TCP"));
  }
  TFR_RETURN_IF_ERROR(memory.Map(static_cast<uint64_t>(info.st_size)));
  *out = std::move(memory);
  return Status::Ok();
}

uint64_t SharedMemory::ResidentBytes() const {
  struct stat info;
  if (fd_ < 0 || fstat(fd_, &info) != 0) return 0;
  return static_cast<uint64_t>(info.st_blocks) * 512;
}

}  // namespace tfring
