// The GPU of one rank: its streams, and events and pinned memory that are used
// again and again, since making either can stop the whole GPU for a moment.
#ifndef TFRING_CORE_NCCL_GPU_H_
#define TFRING_CORE_NCCL_GPU_H_

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
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  const CudaApi& cuda() const { return cuda_; }
  int device() const { return device_; }
  // "0000:3b:00.0": the same in all processes that use this GPU.
  const std::string& bus_id() const { return bus_id_; }

  // Collectives; copies to the host; copies from it. None waits for another.
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

  // RESOURCE_EXHAUSTED: there is no such memory.
  Status Pin(uint64_t bytes, PinnedBuffer* out);
  uint64_t pinned_bytes();

 private:
  friend class PinnedBuffer;

  Gpu() = default;
  Status Start(const std::string& cudart, int device);
  void Unpin(char* data, uint64_t bytes);

  CudaApi cuda_ = {};
  int device_ = 0;
  std::string bus_id_;
  CudaStream streams_[3] = {};
  std::mutex mutex_;
  std::vector<CudaEvent> events_;               // all; guarded by mutex_
  std::vector<CudaEvent> free_events_;          // guarded by mutex_
  std::multimap<uint64_t, char*> free_pinned_;  // guarded by mutex_
  uint64_t pinned_bytes_ = 0;                   // guarded by mutex_
};

}  // namespace tfring

#endif  // TFRING_CORE_NCCL_GPU_H_
