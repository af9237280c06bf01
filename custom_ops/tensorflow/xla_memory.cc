#include "custom_ops/tensorflow/xla_memory.h"

#include <cstdlib>
#include <cstring>

#include "custom_ops/tensorflow/world_holder.h"

namespace tfring {

int XlaMemory::Of(const void* operand, void* stream, XlaMemory* out,
                  std::string* text) {
  tfr_error error = {};
  const int code = CurrentWorld().WithAny([&](tfr_world* world) {
    return tfr_device_of(world, operand, &out->device_, &error);
  });
  out->stream_ = stream;
  *text = error.text;
  return code;
}

int XlaMemory::Copy(void* to, const void* from, size_t bytes,
                    std::string* text) const {
  if (device_ == 0) {
    std::memcpy(to, from, bytes);
    return TFR_OK;
  }
  tfr_error error = {};
  const int code = CurrentWorld().WithAny([&](tfr_world* world) {
    return tfr_device_copy(world, to, from, bytes, stream_, &error);
  });
  *text = error.text;
  return code;
}

void* XlaMemory::Allocate(size_t bytes) const {
  if (device_ == 0) return std::malloc(bytes + 1);
  void* memory = nullptr;
  CurrentWorld().WithAny([&](tfr_world* world) {
    return tfr_device_allocate(world, device_, bytes + 1, &memory, nullptr);
  });
  return memory;
}

void XlaMemory::Free(void* memory) const {
  if (memory == nullptr || device_ == 0) return std::free(memory);
  CurrentWorld().WithAny([&](tfr_world* world) {
    tfr_device_free(world, memory);
    return TFR_OK;
  });
}

}  // namespace tfring
