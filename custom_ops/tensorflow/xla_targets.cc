// The functions that XLA calls, and how they become known to it.
//
// XLA has two ways. The typed one (FFI) has a version that a handler is built
// for, which TensorFlow 2.16 and 2.17 lack and which changes with 2.21. The
// untyped one, used here, is a plain function with one signature in every
// TensorFlow from 2.16 to 2.22: one binary serves all. Its registry is a C++
// function of libtensorflow_cc.so.2, found by its name when the program runs.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "custom_ops/core/tfring.h"
#include "custom_ops/tensorflow/xla_call.h"
#include "custom_ops/tensorflow/xla_gpu.h"
#include "custom_ops/tensorflow/xla_status.h"

namespace tfring {
namespace {

constexpr char kTarget[] = "tfring_collective";

void Fail(XlaStatus* status, int code, const std::string& text) {
  status->message = MarkedError(code, text);
}

// The operands: what to do, the tensors, the token, and perhaps dimensions; one
// result per tensor, then the token. A single result is no array.
void HostTarget(void* results, const void** operands, const char*, size_t,
                XlaStatus* status) {
  XlaCall call;
  const auto* config = static_cast<const char*>(operands[0]);
  if (!call.Parse(config, std::strlen(config))) {
    return Fail(status, TFR_INTERNAL, "tfring cannot read its custom call");
  }
  ++operands;
  const size_t tensors = call.tensors.size();
  if (call.dims_operand) {
    call.SetDims(static_cast<const int32_t*>(operands[tensors + 1]));
  }
  const size_t outputs = XlaResults(call);
  void* const* const places =
      outputs == 0 ? &results : static_cast<void* const*>(results);
  XlaBuffers buffers;
  buffers.inputs.assign(operands, operands + tensors);
  buffers.outputs.assign(places, places + outputs);
  std::string text;
  const int code = RunXlaCall(call, buffers, &text);
  if (code != TFR_OK) return Fail(status, code, text);
  if (places[outputs] != operands[tensors]) {
    std::memcpy(places[outputs], operands[tensors], sizeof(float));
  }
}

using Global = void* (*)();
using Register = void (*)(void*, const std::string&, void*, const std::string&);

}  // namespace
}  // namespace tfring

// Makes the target known. `library` is a handle of libtensorflow_cc.so.2.
// Returns what is missing there, or NULL.
extern "C" TFR_API const char* tfring_xla_register(void* library,
                                                   int32_t with_gpu) {
  using namespace tfring;
  const auto global = reinterpret_cast<Global>(
      dlsym(library, "_ZN3xla24CustomCallTargetRegistry6GlobalEv"));
  const auto add = reinterpret_cast<Register>(
      dlsym(library,
            "_ZN3xla24CustomCallTargetRegistry8RegisterERKNSt7__cxx1112basic_"
            "stringIcSt11char_traitsIcESaIcEEEPvS8_"));
  if (global == nullptr || add == nullptr) {
    return "libtensorflow_cc.so.2 has no xla::CustomCallTargetRegistry";
  }
  add(global(), kTarget, reinterpret_cast<void*>(&HostTarget), "Host");
  if (with_gpu != 0) {
    add(global(), kTarget, reinterpret_cast<void*>(&XlaGpuTarget), "CUDA");
  }
  return nullptr;
}
