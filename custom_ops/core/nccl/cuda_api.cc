#include "custom_ops/core/nccl/cuda_api.h"

#include "custom_ops/core/nccl/library.h"

namespace tfring {
namespace {

constexpr char kWayOut[] =
    ". Run `pip install '.[gpu]'` in tfring's folder, or set "
    "TFRING_CUDART_LIBRARY to the path of libcudart.so";

// The driver's own library, which the run-time library has loaded by now or
// will. A stand-in for the run-time library has the function itself.
void LookUpContext(const Library& library, CudaApi* cuda) {
  constexpr char kName[] = "cuCtxGetCurrent";
  library.LookUp(kName, &cuda->CtxGetCurrent);
  Library driver;
  if (cuda->CtxGetCurrent != nullptr ||
      !Library::Open("", {"libcuda.so.1"}, &driver).ok()) {
    return;
  }
  driver.LookUp(kName, &cuda->CtxGetCurrent);
}

Status LookUp(const Library& library, CudaApi* cuda) {
#define TFR_REQUIRE(function) \
  TFR_RETURN_IF_ERROR(library.Require("cuda" #function, &cuda->function))
  TFR_REQUIRE(GetDeviceCount);
  TFR_REQUIRE(GetDevice);
  TFR_REQUIRE(SetDevice);
  TFR_REQUIRE(DeviceGetPCIBusId);
  TFR_REQUIRE(StreamCreateWithFlags);
  TFR_REQUIRE(StreamDestroy);
  TFR_REQUIRE(StreamWaitEvent);
  TFR_REQUIRE(StreamSynchronize);
  TFR_REQUIRE(EventCreateWithFlags);
  TFR_REQUIRE(EventDestroy);
  TFR_REQUIRE(EventRecord);
  TFR_REQUIRE(EventQuery);
  TFR_REQUIRE(PointerGetAttributes);
  TFR_REQUIRE(MemcpyAsync);
  TFR_REQUIRE(Malloc);
  TFR_REQUIRE(Free);
  TFR_REQUIRE(HostAlloc);
  TFR_REQUIRE(FreeHost);
  TFR_REQUIRE(GetErrorString);
#undef TFR_REQUIRE
  library.LookUp("cudaDeviceGetStreamPriorityRange",
                 &cuda->DeviceGetStreamPriorityRange);
  library.LookUp("cudaStreamCreateWithPriority",
                 &cuda->StreamCreateWithPriority);
  LookUpContext(library, cuda);
  return Status::Ok();
}

}  // namespace

Status CudaApi::Load(const std::string& path, CudaApi* out) {
  Library library;
  // TensorFlow's first.
  const Status opened = Library::Open(
      path, {"libcudart.so.12", "libcudart.so.13", "libcudart.so.11.0"},
      &library);
  if (!opened.ok()) {
    return FailedPrecondition(
        StrCat("the CUDA run-time library cannot be loaded: ", opened.message(),
               kWayOut));
  }
  const Status found = LookUp(library, out);
  if (found.ok()) return found;
  return FailedPrecondition(StrCat(found.message(), kWayOut));
}

Status CudaApi::Check(int error, const char* what) const {
  if (error == kCudaSuccess) return Status::Ok();
  const char* text = GetErrorString(error);
  return Internal(StrCat(what, " failed: ", text == nullptr ? "?" : text,
                         " (CUDA error ", error, ")"));
}

ScopedDevice::ScopedDevice(const CudaApi& cuda, int device) : cuda_(cuda) {
  int before = -1;
  if (cuda_.GetDevice(&before) == kCudaSuccess && before == device) return;
  void* context = nullptr;
  // Before the driver is initialized it gives an error: no context either.
  const bool has_context = cuda_.CtxGetCurrent != nullptr &&
                           cuda_.CtxGetCurrent(&context) == kCudaSuccess &&
                           context != nullptr;
  error_ = cuda_.SetDevice(device);
  if (has_context) restored_ = before;
}

ScopedDevice::~ScopedDevice() {
  if (restored_ >= 0) cuda_.SetDevice(restored_);
}

}  // namespace tfring
