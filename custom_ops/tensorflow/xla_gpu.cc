#include "custom_ops/tensorflow/xla_gpu.h"

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "custom_ops/tensorflow/xla_call.h"

namespace tfring {
namespace {

// The three functions that are needed, of whatever CUDA is in the process.
struct Cuda {
  using Copy = int (*)(void*, const void*, size_t, int, void*);
  using Synchronize = int (*)(void*);
  using Describe = const char* (*)(int);

  Copy copy = nullptr;
  Synchronize synchronize = nullptr;
  Describe describe = nullptr;

  Cuda() {
    for (const char* name : {"libcudart.so.12", "libcudart.so.13",
                             "libcudart.so.11.0", "libcudart.so"}) {
      void* library = dlopen(name, RTLD_LAZY | RTLD_LOCAL);
      if (library == nullptr) continue;
      copy = reinterpret_cast<Copy>(dlsym(library, "cudaMemcpyAsync"));
      synchronize = reinterpret_cast<Synchronize>(
          dlsym(library, "cudaStreamSynchronize"));
      describe =
          reinterpret_cast<Describe>(dlsym(library, "cudaGetErrorString"));
      if (copy != nullptr && synchronize != nullptr && describe != nullptr) {
        return;
      }
    }
    copy = nullptr;
  }
};

constexpr int kToHost = 2;    // cudaMemcpyDeviceToHost
constexpr int kToDevice = 1;  // cudaMemcpyHostToDevice

class Staging {
 public:
  Staging(const Cuda& cuda, void* stream) : cuda_(cuda), stream_(stream) {}

  int Fetch(const void* from, size_t bytes, std::vector<char>* to) {
    to->resize(bytes);
    return cuda_.copy(to->data(), from, bytes, kToHost, stream_);
  }
  int Bring(const std::vector<char>& from, void* to) {
    return cuda_.copy(to, from.data(), from.size(), kToDevice, stream_);
  }
  int Wait() { return cuda_.synchronize(stream_); }

 private:
  const Cuda& cuda_;
  void* const stream_;
};

// Reads what the call is told; false: it cannot.
bool Read(const void* config, Staging* staging, XlaCall* call,
          int* cuda_error) {
  std::vector<char> line;
  *cuda_error = staging->Fetch(config, kXlaSizeDigits, &line);
  if (*cuda_error == 0) *cuda_error = staging->Wait();
  if (*cuda_error != 0) return false;
  const std::string digits(line.begin(), line.end());
  const size_t size = std::strtoull(digits.c_str(), nullptr, 10);
  *cuda_error = staging->Fetch(config, size, &line);
  if (*cuda_error == 0) *cuda_error = staging->Wait();
  return *cuda_error == 0 && call->Parse(line.data(), size);
}

// Returns a tfr_code.
int RunStaged(XlaCall* call, Staging* staging, void** buffers, int* cuda_error,
              std::string* text) {
  const size_t tensors = call->tensors.size();
  if (call->dims_operand) {
    std::vector<char> dims;
    *cuda_error = staging->Fetch(buffers[tensors + 1],
                                 call->dim_count() * sizeof(int32_t), &dims);
    if (*cuda_error == 0) *cuda_error = staging->Wait();
    if (*cuda_error != 0) return TFR_INTERNAL;
    call->SetDims(reinterpret_cast<const int32_t*>(dims.data()));
  }
  std::vector<size_t> sizes;
  const int code = XlaResultSizes(*call, &sizes, text);
  if (code != TFR_OK) return code;
  std::vector<std::vector<char>> inputs(tensors);
  std::vector<std::vector<char>> outputs(sizes.size());
  XlaBuffers host;
  for (size_t i = 0; i < tensors && *cuda_error == 0; ++i) {
    *cuda_error =
        staging->Fetch(buffers[i], call->tensors[i].bytes(), &inputs[i]);
    host.inputs.push_back(inputs[i].data());
  }
  if (*cuda_error == 0) *cuda_error = staging->Wait();
  if (*cuda_error != 0) return TFR_INTERNAL;
  for (size_t i = 0; i < sizes.size(); ++i) {
    outputs[i].resize(sizes[i]);
    host.outputs.push_back(outputs[i].data());
  }
  const int ran = RunXlaCall(*call, host, text);
  if (ran != TFR_OK) return ran;
  const size_t first = tensors + 1 + (call->dims_operand ? 1 : 0);
  for (size_t i = 0; i < sizes.size() && *cuda_error == 0; ++i) {
    *cuda_error = staging->Bring(outputs[i], buffers[first + i]);
  }
  // The host memory goes when this returns.
  if (*cuda_error == 0) *cuda_error = staging->Wait();
  return *cuda_error == 0 ? TFR_OK : TFR_INTERNAL;
}

}  // namespace

void XlaGpuTarget(void* stream, void** buffers, const char*, size_t,
                  XlaStatus* status) {
  static const Cuda cuda;
  XlaCall call;
  std::string text;
  int code = TFR_INTERNAL;
  int cuda_error = 0;
  if (cuda.copy == nullptr) {
    text = "tfring found no CUDA run-time (libcudart.so.12) in this process";
  } else {
    Staging staging(cuda, stream);
    if (!Read(buffers[0], &staging, &call, &cuda_error)) {
      text = "tfring cannot read its custom call";
    } else {
      code = RunStaged(&call, &staging, buffers + 1, &cuda_error, &text);
    }
    if (cuda_error != 0) {
      text = std::string("CUDA: ") + cuda.describe(cuda_error);
    }
  }
  if (code != TFR_OK) status->message = MarkedError(code, text);
}

}  // namespace tfring
