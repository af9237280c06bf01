// Shared memory in which the ranks of one communicator of the double meet and
// hand each other messages, in pieces: one mailbox for each pair of ranks.
#ifndef TFRING_TESTS_ENGINE_MAILBOXES_H_
#define TFRING_TESTS_ENGINE_MAILBOXES_H_

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

namespace gpu_double {

constexpr int kMostRanks = 8;
constexpr size_t kPieceBytes = 64 * 1024;

struct Mailbox {
  std::atomic<uint64_t> sent;   // pieces put in
  std::atomic<uint64_t> taken;  // and out
  uint64_t bytes;
  uint64_t tag;  // what both sides think it is
  char data[kPieceBytes];
};

struct MeetingPlace {
  std::atomic<int> arrived;
  std::atomic<int> finalized;
  Mailbox boxes[kMostRanks][kMostRanks];  // [from][to]
};

// Mapped once per rank, also where ranks are threads.
class Mapping {
 public:
  static bool Create(const std::string& name) {
    const int fd = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
    if (fd < 0) return false;
    const bool ok = ftruncate(fd, sizeof(MeetingPlace)) == 0;
    close(fd);
    return ok;
  }

  explicit Mapping(const std::string& name) : name_(name) {
    const int fd = shm_open(name.c_str(), O_RDWR, 0);
    if (fd < 0) return;
    void* at = mmap(nullptr, sizeof(MeetingPlace), PROT_READ | PROT_WRITE,
                    MAP_SHARED, fd, 0);
    close(fd);
    if (at != MAP_FAILED) place_ = static_cast<MeetingPlace*>(at);
  }
  ~Mapping() {
    if (place_ != nullptr) munmap(place_, sizeof(MeetingPlace));
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void Unlink() const { shm_unlink(name_.c_str()); }
  MeetingPlace* get() const { return place_; }

 private:
  const std::string name_;
  MeetingPlace* place_ = nullptr;
};

// A message on its way, seen from one side.
struct Transfer {
  int peer;
  char* data;
  size_t bytes;
  uint64_t tag;
  size_t moved = 0;
  bool begun = false;  // empty messages are one empty piece
};

// Moves a piece if the mailbox allows it; whether it did.
inline bool PutPiece(Mailbox* box, Transfer* transfer) {
  const uint64_t sent = box->sent.load(std::memory_order_relaxed);
  if (box->taken.load(std::memory_order_acquire) != sent) return false;
  const size_t bytes = std::min(kPieceBytes, transfer->bytes - transfer->moved);
  std::memcpy(box->data, transfer->data + transfer->moved, bytes);
  box->bytes = bytes;
  box->tag = transfer->tag;
  transfer->moved += bytes;
  transfer->begun = true;
  box->sent.store(sent + 1, std::memory_order_release);
  return true;
}

// `*same`: both sides mean the same message.
inline bool TakePiece(Mailbox* box, Transfer* transfer, bool* same) {
  const uint64_t taken = box->taken.load(std::memory_order_relaxed);
  if (box->sent.load(std::memory_order_acquire) == taken) return false;
  *same =
      box->tag == transfer->tag &&
      box->bytes == std::min(kPieceBytes, transfer->bytes - transfer->moved);
  if (!*same) return true;
  std::memcpy(transfer->data + transfer->moved, box->data, box->bytes);
  transfer->moved += box->bytes;
  transfer->begun = true;
  box->taken.store(taken + 1, std::memory_order_release);
  return true;
}

inline bool IsDone(const Transfer& transfer) {
  return transfer.begun && transfer.moved == transfer.bytes;
}

}  // namespace gpu_double

#endif  // TFRING_TESTS_ENGINE_MAILBOXES_H_
