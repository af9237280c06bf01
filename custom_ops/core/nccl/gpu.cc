#include "custom_ops/core/nccl/gpu.h"

#include <iterator>
#include <utility>

namespace tfring {
namespace {

constexpr uint64_t kLeastPinned = 4096;
// From here on eight sizes to each power of two, below one.
constexpr uint64_t kLargePinned = 1u << 20;

uint64_t PinnedSize(uint64_t bytes) {
  uint64_t size = kLeastPinned;
  while (size < bytes) size *= 2;
  if (size <= kLargePinned) return size;
  const uint64_t step = size / 16;
  return (bytes + step - 1) / step * step;
}

}  // namespace

PinnedBuffer::~PinnedBuffer() {
  if (gpu_ != nullptr) gpu_->Unpin(data_, bytes_);
}

PinnedBuffer& PinnedBuffer::operator=(PinnedBuffer&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Status Gpu::Open(const std::string& cudart, int device,
                 std::unique_ptr<Gpu>* out) {
  std::unique_ptr<Gpu> gpu(new Gpu());
  TFR_RETURN_IF_ERROR(gpu->Start(cudart, device));
  *out = std::move(gpu);
  return Status::Ok();
}

Status Gpu::Start(const std::string& cudart, int device) {
  TFR_RETURN_IF_ERROR(CudaApi::Load(cudart, &cuda_));
  int count = 0;
  TFR_RETURN_IF_ERROR(
      cuda_.Check(cuda_.GetDeviceCount(&count), "cudaGetDeviceCount"));
  if (device >= count) {
    return InvalidArgument(
        StrCat("there is no CUDA device ", device, "; CUDA sees ", count));
  }
  device_ = device;
  const ScopedDevice current(cuda_, device_);
  TFR_RETURN_IF_ERROR(current.status());
  char bus_id[32] = {};
  TFR_RETURN_IF_ERROR(
      cuda_.Check(cuda_.DeviceGetPCIBusId(bus_id, sizeof(bus_id), device_),
                  "cudaDeviceGetPCIBusId"));
  bus_id_ = bus_id;
  return StartStreams();
}

Status Gpu::StartStreams() {
  int least = 0;
  int greatest = 0;
  if (cuda_.StreamCreateWithPriority != nullptr &&
      cuda_.DeviceGetStreamPriorityRange != nullptr &&
      cuda_.DeviceGetStreamPriorityRange(&least, &greatest) == kCudaSuccess) {
    TFR_RETURN_IF_ERROR(
        cuda_.Check(cuda_.StreamCreateWithPriority(
                        &streams_[0], kCudaStreamNonBlocking, greatest),
                    "cudaStreamCreateWithPriority"));
  }
  for (CudaStream& stream : streams_) {
    if (stream != nullptr) continue;
    TFR_RETURN_IF_ERROR(cuda_.Check(
        cuda_.StreamCreateWithFlags(&stream, kCudaStreamNonBlocking),
        "cudaStreamCreateWithFlags"));
  }
  return Status::Ok();
}

Gpu::~Gpu() {
  if (cuda_.SetDevice == nullptr) return;
  if (given_up_.load(std::memory_order_acquire)) return;
  const ScopedDevice current(cuda_, device_);
  for (const CudaStream stream : streams_) {
    if (stream != nullptr) cuda_.StreamDestroy(stream);
  }
  for (const CudaEvent event : events_) cuda_.EventDestroy(event);
  for (const auto& [bytes, data] : free_pinned_) cuda_.FreeHost(data);
}

Status Gpu::Mark(CudaStream stream, CudaEvent* event) {
  *event = nullptr;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (!free_events_.empty()) {
      *event = free_events_.back();
      free_events_.pop_back();
    }
  }
  if (*event == nullptr) {
    TFR_RETURN_IF_ERROR(
        cuda_.Check(cuda_.EventCreateWithFlags(event, kCudaEventDisableTiming),
                    "cudaEventCreateWithFlags"));
    std::lock_guard<std::mutex> lock(mutex_);
    events_.push_back(*event);
  }
  return cuda_.Check(cuda_.EventRecord(*event, stream), "cudaEventRecord");
}

void Gpu::Return(CudaEvent event) {
  if (event == nullptr) return;
  std::lock_guard<std::mutex> lock(mutex_);
  free_events_.push_back(event);
}

Status Gpu::Wait(CudaStream stream, CudaEvent event) const {
  return cuda_.Check(cuda_.StreamWaitEvent(stream, event, 0),
                     "cudaStreamWaitEvent");
}

Status Gpu::WaitFor(CudaStream stream, CudaStream other) {
  CudaEvent event = nullptr;
  const Status marked = Mark(other, &event);
  const Status waits = marked.ok() ? Wait(stream, event) : marked;
  Return(event);
  return waits;
}

Status Gpu::Pin(uint64_t bytes, PinnedBuffer* out) {
  const uint64_t size = PinnedSize(bytes);
  {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto at = free_pinned_.find(size);
    if (at != free_pinned_.end()) {
      *out = PinnedBuffer(this, at->second, size);
      free_pinned_.erase(at);
      unused_.fetch_sub(size, std::memory_order_relaxed);
      return Status::Ok();
    }
  }
  void* data = nullptr;
  const int error = cuda_.HostAlloc(&data, size, kCudaHostAllocPortable);
  if (error != kCudaSuccess) {
    return ResourceExhausted(
        StrCat("no pinned memory of ", size,
               " bytes: ", cuda_.Check(error, "cudaHostAlloc").message()));
  }
  *out = PinnedBuffer(this, static_cast<char*>(data), size);
  std::lock_guard<std::mutex> lock(mutex_);
  pinned_bytes_ += size;
  return Status::Ok();
}

void Gpu::Unpin(char* data, uint64_t bytes) {
  std::lock_guard<std::mutex> lock(mutex_);
  free_pinned_.emplace(bytes, data);
  unused_.fetch_add(bytes, std::memory_order_relaxed);
}

void Gpu::Trim() {
  std::vector<char*> surplus;
  if (unused_.load(std::memory_order_relaxed) > kMostUnused) {
    std::lock_guard<std::mutex> lock(mutex_);
    while (unused_.load(std::memory_order_relaxed) > kMostUnused) {
      const auto largest = std::prev(free_pinned_.end());
      surplus.push_back(largest->second);
      pinned_bytes_ -= largest->first;
      unused_.fetch_sub(largest->first, std::memory_order_relaxed);
      free_pinned_.erase(largest);
    }
  }
  if (given_up_.load(std::memory_order_acquire)) return;
  for (char* const data : surplus) cuda_.FreeHost(data);
}

uint64_t Gpu::pinned_bytes() {
  std::lock_guard<std::mutex> lock(mutex_);
  return pinned_bytes_;
}

}  // namespace tfring
