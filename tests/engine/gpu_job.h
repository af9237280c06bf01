// Jobs whose tensors are in the memory of the double's GPUs (gpu_double/).
#ifndef TFRING_TESTS_ENGINE_GPU_JOB_H_
#define TFRING_TESTS_ENGINE_GPU_JOB_H_

#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "check.h"
#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/dtype.h"
#include "custom_ops/core/tfring.h"
#include "job.h"
#include "values.h"

namespace tfring_test {

// The CUDA run-time library, or the double, as tests use it.
class GpuLibrary {
 public:
  GpuLibrary(std::string cudart, std::string nccl)
      : cudart_(std::move(cudart)), nccl_(std::move(nccl)) {
    handle_ = dlopen(cudart_.c_str(), RTLD_NOW | RTLD_LOCAL);
    EXPECT_TRUE(handle_ != nullptr);
    if (handle_ != nullptr) Call("cudaGetDeviceCount", &devices_);
  }

  template <typename... Args>
  int64_t Call(const char* function, Args... args) const {
    auto* const f = reinterpret_cast<int64_t (*)(Args...)>(Find(function));
    return f == nullptr ? -1 : f(args...);
  }
  template <typename... Args>
  void Set(const char* function, Args... args) const {
    auto* const f = reinterpret_cast<void (*)(Args...)>(Find(function));
    if (f != nullptr) f(args...);
  }

  void* Malloc(size_t bytes) const {
    void* memory = nullptr;
    const auto f =
        reinterpret_cast<int (*)(void**, size_t)>(Find("cudaMalloc"));
    // One more: no bytes are no buffer.
    EXPECT_EQ(f(&memory, bytes + 1), 0);
    return memory;
  }
  void Free(void* memory) const {
    reinterpret_cast<int (*)(void*)>(Find("cudaFree"))(memory);
  }
  void Copy(void* to, const void* from, size_t bytes) const {
    EXPECT_EQ(reinterpret_cast<int (*)(void*, const void*, size_t, int)>(
                  Find("cudaMemcpy"))(to, from, bytes, 4),
              0);
  }
  void CopyAsync(void* to, const void* from, size_t bytes, void* stream) const {
    reinterpret_cast<int (*)(void*, const void*, size_t, int, void*)>(
        Find("cudaMemcpyAsync"))(to, from, bytes, 4, stream);
  }
  void* NewStream() const {
    void* stream = nullptr;
    reinterpret_cast<int (*)(void**, unsigned)>(
        Find("cudaStreamCreateWithFlags"))(&stream, 1);
    return stream;
  }
  void EndStream(void* stream) const {
    reinterpret_cast<int (*)(void*)>(Find("cudaStreamDestroy"))(stream);
  }

  bool is_double() const {
    return dlsym(handle_, "gpu_double_waits") != nullptr;
  }
  // Times that a thread was made to wait for a stream so far; only the double
  // knows.
  int64_t waits() const { return is_double() ? Call("gpu_double_waits") : 0; }

  // A request's `device` for a rank: one GPU each, as far as there are enough.
  int32_t DeviceOf(int rank) const { return rank % devices_ + 1; }

  // For a job that uses it.
  JobOptions Options(int size) const {
    JobOptions options;
    options.size = size;
    options.cudart_library = cudart_;
    options.nccl_library = nccl_;
    return options;
  }

 protected:
  void* Find(const char* function) const {
    void* const at = dlsym(handle_, function);
    EXPECT_TRUE(at != nullptr);
    return at;
  }

 private:
  const std::string cudart_;
  const std::string nccl_;
  void* handle_;
  int devices_ = 1;
};

#ifdef GPU_DOUBLE
// The double, in its first state.
class Double : public GpuLibrary {
 public:
  explicit Double(const char* path = GPU_DOUBLE) : GpuLibrary(path, path) {
    Reset();
  }
  ~Double() { Reset(); }
  Double(const Double&) = delete;
  Double& operator=(const Double&) = delete;

  int64_t alive() const { return Call("gpu_double_alive"); }
  int64_t aborts() const { return Call("gpu_double_aborts"); }
  int64_t nccl_calls() const { return Call("gpu_double_nccl_calls"); }
  uint64_t contexts() const {
    return static_cast<uint64_t>(Call("gpu_double_contexts"));
  }
  void Slow(int64_t us) const { Set("gpu_double_slow", us); }

 private:
  void Reset() const {
    Slow(0);
    Set("gpu_double_nccl_error", -1, 0);
    Set("gpu_double_nccl_hangs", 0);
    Set("gpu_double_nccl_stuck", 0);
    Set("gpu_double_nccl_version", 23203);
    Set("gpu_double_pinned_limit", UINT64_MAX);
  }
};
#endif

// A piece of a GPU's memory.
class GpuBuffer {
 public:
  GpuBuffer(const GpuLibrary& gpu, size_t bytes)
      : gpu_(gpu), bytes_(bytes), data_(gpu.Malloc(bytes)) {}
  GpuBuffer(const GpuLibrary& gpu, const Bytes& bytes)
      : GpuBuffer(gpu, bytes.size()) {
    gpu_.Copy(data_, bytes.data(), bytes.size());
  }
  ~GpuBuffer() { gpu_.Free(data_); }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;

  void* data() const { return data_; }
  Bytes Get() const {
    Bytes bytes(bytes_);
    gpu_.Copy(bytes.data(), data_, bytes_);
    return bytes;
  }

 private:
  const GpuLibrary& gpu_;
  const size_t bytes_;
  void* const data_;
};

// Outputs that are asked for while a collective runs.
struct GpuOutputs {
  const GpuLibrary* gpu = nullptr;
  std::vector<uint64_t> row_bytes;
  std::vector<std::unique_ptr<GpuBuffer>> data;
  std::vector<int64_t> rows;

  GpuOutputs(const GpuLibrary& of, std::vector<uint64_t> bytes)
      : gpu(&of), row_bytes(std::move(bytes)) {
    data.resize(row_bytes.size());
    rows.resize(row_bytes.size(), -1);
  }
  static void* Allocate(void* user, int32_t tensor, int64_t rows) {
    auto* const out = static_cast<GpuOutputs*>(user);
    const auto t = static_cast<size_t>(tensor);
    out->rows[t] = rows;
    out->data[t] = std::make_unique<GpuBuffer>(
        *out->gpu, static_cast<size_t>(rows) * out->row_bytes[t]);
    return out->data[t]->data();
  }
};

// Ends of requests that were submitted.
struct Ends {
  std::atomic<int> count{0};
  std::atomic<int> failed{0};
  std::mutex mutex;
  std::string text;  // the first error's

  static void Done(void* user, const tfr_error* error) {
    auto* const ends = static_cast<Ends*>(user);
    if (error->code != TFR_OK) {
      const std::lock_guard<std::mutex> lock(ends->mutex);
      if (ends->text.empty()) ends->text = error->text;
      ++ends->failed;
    }
    ++ends->count;
  }
  void Await(int number) const {
    const auto deadline = tfring::Deadline::After(60);
    while (count < number && !deadline.expired()) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(count.load(), number);
  }
};

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_GPU_JOB_H_
