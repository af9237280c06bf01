#include "custom_ops/tensorflow/xla_gpu.h"

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "custom_ops/tensorflow/xla_call.h"

namespace tfring {
namespace {

// These return a tfr_code and say why in `*text`.

int FetchLine(const XlaMemory& memory, const void* config, std::string* line,
              std::string* text) {
  line->resize(kXlaLeastBytes);
  int code = memory.Copy(line->data(), config, line->size(), text);
  if (code != TFR_OK) return code;
  const std::string digits = line->substr(0, kXlaSizeDigits);
  const size_t size = std::strtoull(digits.c_str(), nullptr, 10);
  if (size <= line->size()) return TFR_OK;
  line->resize(size);
  return memory.Copy(line->data(), config, size, text);
}

int FetchCall(const XlaMemory& memory, void* const* operands, XlaCall* call,
              std::string* text) {
  std::string line;
  int code = FetchLine(memory, operands[0], &line, text);
  if (code != TFR_OK) return code;
  if (!call->Parse(line.data(), line.size())) {
    *text = "tfring cannot read its custom call";
    return TFR_INTERNAL;
  }
  if (!call->dims_operand) return TFR_OK;
  std::vector<int32_t> dims(call->dim_count());
  code = memory.Copy(dims.data(), operands[call->tensors.size() + 2],
                     dims.size() * sizeof(int32_t), text);
  if (code == TFR_OK) call->SetDims(dims.data());
  return code;
}

int Go(void* stream, void* const* buffers, std::string* text) {
  XlaBuffers run;
  // The line that describes the call is always on the GPU.
  int code = XlaMemory::Of(buffers[0], stream, &run.memory, text);
  if (code != TFR_OK) return code;
  XlaCall call;
  code = FetchCall(run.memory, buffers, &call, text);
  if (code != TFR_OK) return code;
  const size_t tensors = call.tensors.size();
  // The line, the tensors, the token, perhaps dimensions; then the results.
  void* const* const inputs = buffers + 1;
  void* const* const outputs =
      inputs + tensors + 1 + (call.dims_operand ? 1 : 0);
  run.inputs.assign(inputs, inputs + tensors);
  run.outputs.assign(outputs, outputs + XlaResults(call));
  return RunXlaCall(call, run, text);
}

}  // namespace

void XlaGpuTarget(void* stream, void** buffers, const char*, size_t,
                  XlaStatus* status) {
  std::string text;
  const int code = Go(stream, buffers, &text);
  if (code != TFR_OK) status->message = MarkedError(code, text);
}

}  // namespace tfring
