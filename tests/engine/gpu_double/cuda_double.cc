// The CUDA run-time library's part of the double.
#include "cuda_double.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>

namespace gpu_double {
namespace {

constexpr int kDevices = 8;
constexpr int kOk = 0;
constexpr int kInvalid = 1;
constexpr int kNoMemory = 2;
constexpr int kNotReady = 600;

thread_local int current_device = 0;
thread_local bool has_context = false;
std::atomic<uint64_t> contexts{0};
std::atomic<int64_t> first_streams{0};
constexpr int kHighest = -5;
std::atomic<int64_t> slow_us{0};
std::atomic<uint64_t> pinned_limit{UINT64_MAX};

// The calling thread does something that needs a context.
int UseDevice() {
  has_context = true;
  contexts |= uint64_t{1} << current_device;
  return current_device;
}

class Stream {
 public:
  explicit Stream(int device) : device_(device), thread_([this] { Run(); }) {
    ++Count().alive;
  }
  ~Stream() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      ending_ = true;
    }
    changed_.notify_all();
    thread_.join();
    --Count().alive;
  }

  void Add(std::function<void()> work) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      queue_.push_back(std::move(work));
    }
    changed_.notify_all();
  }

  int device() const { return device_; }

  void Synchronize() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return queue_.empty() && !busy_; });
  }

 private:
  void Run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return ending_ || !queue_.empty(); });
      if (queue_.empty()) return;
      const std::function<void()> work = std::move(queue_.front());
      queue_.pop_front();
      busy_ = true;
      lock.unlock();
      const int64_t slow = slow_us.load();
      if (slow > 0) {
        std::this_thread::sleep_for(std::chrono::microseconds(slow));
      }
      work();
      lock.lock();
      busy_ = false;
      changed_.notify_all();
    }
  }

  const int device_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> queue_;
  bool busy_ = false;
  bool ending_ = false;
  std::thread thread_;
};

struct Event {
  explicit Event(int of) : device(of) {}
  const int device;
  std::mutex mutex;
  std::condition_variable happened;
  uint64_t recorded = 0;
  uint64_t done = 0;
};
using EventPointer = std::shared_ptr<Event>;

EventPointer& EventOf(void* handle) {
  return *static_cast<EventPointer*>(handle);
}

// The default stream of the current device, which outlives everything.
Stream* DefaultStream() {
  static std::mutex mutex;
  static auto* const streams = new std::map<int, Stream*>;
  const std::lock_guard<std::mutex> lock(mutex);
  Stream*& stream = (*streams)[current_device];
  if (stream == nullptr) {
    stream = new Stream(current_device);
    --Count().alive;
  }
  return stream;
}

Stream* StreamOf(void* handle) {
  return handle == nullptr ? DefaultStream() : static_cast<Stream*>(handle);
}

// A GPU's memory: pages mapped twice, of which callers get the address that
// cannot be used.
struct DeviceMemory {
  char* real;
  size_t bytes;
  int device;
};

class Memories {
 public:
  void* Add(size_t bytes) {
    const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    const size_t size = (bytes + page) / page * page;
    const int fd = memfd_create("gpu", 0);
    if (fd < 0 || ftruncate(fd, static_cast<off_t>(size)) != 0) return nullptr;
    void* real = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    void* shown = mmap(nullptr, size, PROT_NONE, MAP_SHARED, fd, 0);
    close(fd);
    if (real == MAP_FAILED || shown == MAP_FAILED) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    memories_[static_cast<char*>(shown)] = {static_cast<char*>(real), size,
                                            UseDevice()};
    return shown;
  }

  bool Remove(void* shown) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = memories_.find(static_cast<char*>(shown));
    if (at == memories_.end()) return false;
    munmap(at->second.real, at->second.bytes);
    munmap(shown, at->second.bytes);
    memories_.erase(at);
    return true;
  }

  void* Real(char* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = Find(pointer);
    return at == memories_.end() ? pointer
                                 : at->second.real + (pointer - at->first);
  }

  // Where it is; < 0: in no GPU's memory.
  int DeviceOf(char* pointer) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = Find(pointer);
    return at == memories_.end() ? -1 : at->second.device;
  }

 private:
  std::map<char*, DeviceMemory>::iterator Find(char* pointer) {
    auto at = memories_.upper_bound(pointer);
    if (at == memories_.begin()) return memories_.end();
    --at;
    const auto offset = static_cast<size_t>(pointer - at->first);
    return offset < at->second.bytes ? at : memories_.end();
  }

  std::mutex mutex_;
  std::map<char*, DeviceMemory> memories_;
};

Memories& AllMemories() {
  static auto* const memories = new Memories;
  return *memories;
}

// Host memory that GPUs can reach: its device, by its first byte.
class Pinned {
 public:
  void Add(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    devices_[memory] = UseDevice();
  }
  bool Remove(void* memory) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return devices_.erase(memory) > 0;
  }
  void ExpectDevice(const void* memory, int device) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto at = devices_.find(memory);
    if (at != devices_.end() && at->second != device) {
      Misused("pinned memory of another device");
    }
  }

 private:
  std::mutex mutex_;
  std::map<const void*, int> devices_;
};

Pinned& AllPinned() {
  static auto* const pinned = new Pinned;
  return *pinned;
}

}  // namespace

Counters& Count() {
  static auto* const counters = new Counters;
  return *counters;
}

void Enqueue(void* stream, std::function<void()> work) {
  StreamOf(stream)->Add(std::move(work));
}

int CurrentDevice() { return current_device; }
int DeviceOf(void* stream) { return StreamOf(stream)->device(); }

void ExpectCurrent(int device, const char* what) {
  if (device == current_device) return;
  std::fprintf(stderr, "gpu double: of device %d, but %d is current\n", device,
               current_device);
  Misused(what);
}

void* Real(const void* pointer) {
  return AllMemories().Real(
      const_cast<char*>(static_cast<const char*>(pointer)));
}

void Misused(const char* what) {
  std::fprintf(stderr, "gpu double: %s\n", what);
  std::fflush(stderr);
  std::abort();
}

}  // namespace gpu_double

using gpu_double::Count;
using gpu_double::Real;

GPU_DOUBLE_API void gpu_double_slow(int64_t microseconds) {
  gpu_double::slow_us = microseconds;
}
GPU_DOUBLE_API void gpu_double_pinned_limit(uint64_t bytes) {
  gpu_double::pinned_limit = bytes;
}
GPU_DOUBLE_API int64_t gpu_double_alive() { return Count().alive; }
GPU_DOUBLE_API int64_t gpu_double_aborts() { return Count().aborts; }
GPU_DOUBLE_API int64_t gpu_double_nccl_calls() { return Count().nccl_calls; }
GPU_DOUBLE_API int64_t gpu_double_first_streams() {
  return gpu_double::first_streams;
}
GPU_DOUBLE_API uint64_t gpu_double_contexts() { return gpu_double::contexts; }
GPU_DOUBLE_API int64_t gpu_double_waits() { return Count().waits; }

GPU_DOUBLE_API const char* cudaGetErrorString(int error) {
  switch (error) {
    case gpu_double::kOk:
      return "no error";
    case gpu_double::kNoMemory:
      return "out of memory";
    case gpu_double::kNotReady:
      return "device not ready";
    default:
      return "invalid argument";
  }
}

GPU_DOUBLE_API int cudaGetDeviceCount(int* count) {
  *count = gpu_double::kDevices;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaGetDevice(int* device) {
  *device = gpu_double::current_device;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaSetDevice(int device) {
  if (device < 0 || device >= gpu_double::kDevices) return gpu_double::kInvalid;
  gpu_double::current_device = device;
  gpu_double::UseDevice();
  return gpu_double::kOk;
}

// cudaPointerAttributes, as its first members have been since CUDA 11.
GPU_DOUBLE_API int cudaPointerGetAttributes(void* out, const void* pointer) {
  struct Attributes {
    int type;
    int device;
    void* device_pointer;
    void* host_pointer;
  };
  const int device = gpu_double::AllMemories().DeviceOf(
      const_cast<char*>(static_cast<const char*>(pointer)));
  auto* const shared = const_cast<void*>(pointer);
  *static_cast<Attributes*>(out) = device >= 0
                                       ? Attributes{2, device, shared, nullptr}
                                       : Attributes{0, -2, nullptr, shared};
  return gpu_double::kOk;
}

// The driver's.
GPU_DOUBLE_API int cuCtxGetCurrent(void** context) {
  static char one_each[gpu_double::kDevices];
  *context =
      gpu_double::has_context ? one_each + gpu_double::current_device : nullptr;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaDeviceGetPCIBusId(char* id, int bytes, int device) {
  std::snprintf(id, static_cast<size_t>(bytes), "0000:%02x:00.0", device);
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaMalloc(void** memory, size_t bytes) {
  *memory = gpu_double::AllMemories().Add(bytes);
  return *memory == nullptr ? gpu_double::kNoMemory : gpu_double::kOk;
}

GPU_DOUBLE_API int cudaFree(void* memory) {
  if (memory == nullptr) return gpu_double::kOk;
  gpu_double::UseDevice();
  return gpu_double::AllMemories().Remove(memory) ? gpu_double::kOk
                                                  : gpu_double::kInvalid;
}

GPU_DOUBLE_API int cudaMemcpyAsync(void* to, const void* from, size_t bytes,
                                   int, void* stream) {
  gpu_double::UseDevice();
  const int device = gpu_double::DeviceOf(stream);
  gpu_double::AllPinned().ExpectDevice(to, device);
  gpu_double::AllPinned().ExpectDevice(from, device);
  gpu_double::Enqueue(stream, [to = Real(to), from = Real(from), bytes] {
    std::memmove(to, from, bytes);
  });
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaStreamSynchronize(void* stream) {
  ++Count().waits;
  gpu_double::UseDevice();
  gpu_double::StreamOf(stream)->Synchronize();
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaMemcpy(void* to, const void* from, size_t bytes,
                              int kind) {
  cudaMemcpyAsync(to, from, bytes, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}

GPU_DOUBLE_API int cudaHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = nullptr;
  if (bytes > gpu_double::pinned_limit) return gpu_double::kNoMemory;
  *memory = std::malloc(bytes);
  gpu_double::AllPinned().Add(*memory);
  ++Count().alive;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaFreeHost(void* memory) {
  gpu_double::UseDevice();
  if (!gpu_double::AllPinned().Remove(memory)) return gpu_double::kInvalid;
  std::free(memory);
  --Count().alive;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaStreamCreateWithFlags(void** stream, unsigned) {
  *stream = new gpu_double::Stream(gpu_double::UseDevice());
  return gpu_double::kOk;
}

#ifndef GPU_DOUBLE_OLD
GPU_DOUBLE_API int cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = gpu_double::kHighest;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaStreamCreateWithPriority(void** stream, unsigned,
                                                int priority) {
  if (priority == gpu_double::kHighest) ++gpu_double::first_streams;
  *stream = new gpu_double::Stream(gpu_double::UseDevice());
  return gpu_double::kOk;
}
#endif

GPU_DOUBLE_API int cudaStreamDestroy(void* stream) {
  delete static_cast<gpu_double::Stream*>(stream);
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaEventCreateWithFlags(void** event, unsigned) {
  *event = new gpu_double::EventPointer(
      std::make_shared<gpu_double::Event>(gpu_double::UseDevice()));
  ++Count().alive;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaEventDestroy(void* event) {
  delete static_cast<gpu_double::EventPointer*>(event);
  --Count().alive;
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaEventRecord(void* handle, void* stream) {
  const gpu_double::EventPointer event = gpu_double::EventOf(handle);
  gpu_double::UseDevice();
  gpu_double::ExpectCurrent(event->device, "an event is recorded");
  gpu_double::ExpectCurrent(gpu_double::DeviceOf(stream),
                            "an event is recorded in a stream");
  uint64_t record;
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    record = ++event->recorded;
  }
  gpu_double::Enqueue(stream, [event, record] {
    const std::lock_guard<std::mutex> lock(event->mutex);
    if (event->done < record) event->done = record;
    event->happened.notify_all();
  });
  return gpu_double::kOk;
}

GPU_DOUBLE_API int cudaEventQuery(void* handle) {
  const gpu_double::EventPointer event = gpu_double::EventOf(handle);
  const std::lock_guard<std::mutex> lock(event->mutex);
  return event->done >= event->recorded ? gpu_double::kOk
                                        : gpu_double::kNotReady;
}

GPU_DOUBLE_API int cudaStreamWaitEvent(void* stream, void* handle, unsigned) {
  const gpu_double::EventPointer event = gpu_double::EventOf(handle);
  gpu_double::UseDevice();
  gpu_double::ExpectCurrent(gpu_double::DeviceOf(stream),
                            "a stream waits for an event");
  uint64_t record;
  {
    const std::lock_guard<std::mutex> lock(event->mutex);
    record = event->recorded;
  }
  gpu_double::Enqueue(stream, [event, record] {
    std::unique_lock<std::mutex> lock(event->mutex);
    event->happened.wait(lock, [&] { return event->done >= record; });
  });
  return gpu_double::kOk;
}
