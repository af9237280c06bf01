// The GPU of one rank: its streams, and events and pinned memory that are used
// again and again, since making either can stop the whole GPU for a moment.
//
// Pinned memory is asked for in few sizes, at most 1/8 larger than what is
// needed (small ones: twice). What is unused stays, up to kMostUnused; Trim()
// gives back the rest, largest first.
#ifndef TFRING_CORE_NCCL_GPU_H_
#define TFRING_CORE_NCCL_GPU_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/cuda_api.h"

namespace tfring {

class Gpu;

// Host memory that the GPU can reach by itself; goes back to the Gpu.
class PinnedBuffer {
 public:
  PinnedBuffer() = default;
  PinnedBuffer(Gpu* gpu, char* data, uint64_t bytes)
      : gpu_(gpu), data_(data), bytes_(bytes) {}
  ~PinnedBuffer();
  PinnedBuffer(PinnedBuffer&& other) noexcept { *this = std::move(other); }
  PinnedBuffer& operator=(PinnedBuffer&& other) noexcept;

  char* data() const { return data_; }

 private:
  Gpu* gpu_ = nullptr;
  char* data_ = nullptr;
  uint64_t bytes_ = 0;  // as it was asked from CUDA
};

class Gpu {
 public:
  static Status Open(const std::string& cudart, int device,
                     std::unique_ptr<Gpu>* out);
  // What it gave must be back, or in nobody's use.
  ~Gpu();
  // A stream has work that does not end, although it was told to. CUDA would
  // wait for it, perhaps for ever, before it frees anything: so from now on
  // nothing is freed, and streams, events and pinned memory are left behind.
  void GiveUp() { given_up_.store(true, std::memory_order_release); }
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const CudaApi& cuda() const { return cuda_; }
  int device() const { return device_; }
  // "0000:3b:00.0": the same in all processes that use this GPU.
  const std::string& bus_id() const { return bus_id_; }

  // Collectives, before all else that the GPU has to do, as the other ranks
  // wait for them; copies to the host; copies from it. None waits for another.
  CudaStream collectives() const { return streams_[0]; }
  CudaStream to_host() const { return streams_[1]; }
  CudaStream from_host() const { return streams_[2]; }

  // An event behind the work that `stream` has now.
  Status Mark(CudaStream stream, CudaEvent* event);
  // The event may be used again, which does not disturb waits already asked.
  void Return(CudaEvent event);
  // `stream` goes on when the event has happened.
  Status Wait(CudaStream stream, CudaEvent event) const;
  // `stream` goes on when `other` has done what it has now.
  Status WaitFor(CudaStream stream, CudaStream other);

  static constexpr uint64_t kMostUnused = uint64_t{256} << 20;
  // RESOURCE_EXHAUSTED: there is no such memory.
  Status Pin(uint64_t bytes, PinnedBuffer* out);
  // Frees unused pinned memory beyond kMostUnused. CUDA may wait for all that
  // the GPU does, so not on the thread that aborts what does not end.
  void Trim();
  // Used or not.
  uint64_t pinned_bytes();

 private:
  friend class PinnedBuffer;

  Gpu() = default;
  Status Start(const std::string& cudart, int device);
  Status StartStreams();
  void Unpin(char* data, uint64_t bytes);

  CudaApi cuda_ = {};
  int device_ = 0;
  std::string bus_id_;
  CudaStream streams_[3] = {};
  std::atomic<bool> given_up_{false};
  std::atomic<uint64_t> unused_{0};  // bytes of free_pinned_
  std::mutex mutex_;
  std::vector<CudaEvent> events_;               // all; guarded by mutex_
  std::vector<CudaEvent> free_events_;          // guarded by mutex_
  std::multimap<uint64_t, char*> free_pinned_;  // guarded by mutex_
  uint64_t pinned_bytes_ = 0;                   // guarded by mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_GPU_H_
