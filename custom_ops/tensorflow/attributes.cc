#include "custom_ops/tensorflow/attributes.h"

#include <cstring>

namespace tfring {
namespace {

int64_t ReadInt(TF_OpKernelConstruction* construction, const char* name,
                TF_Status* status) {
  int64_t value = 0;
  if (TF_GetCode(status) == TF_OK) {
    TF_OpKernelConstruction_GetAttrInt64(construction, name, &value, status);
  }
  return value;
}

// TensorFlow's float attributes have 32 bits, so a factor travels as the bit
// pattern of a float64 in an int attribute.
double ReadFactor(TF_OpKernelConstruction* construction, const char* name,
                  TF_Status* status) {
  const int64_t bits = ReadInt(construction, name, status);
  double value;
  static_assert(sizeof(value) == sizeof(bits), "float64 expected");
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool ReadBool(TF_OpKernelConstruction* construction, const char* name,
              TF_Status* status) {
  unsigned char value = 0;
  if (TF_GetCode(status) == TF_OK) {
    TF_OpKernelConstruction_GetAttrBool(construction, name, &value, status);
  }
  return value != 0;
}

std::string ReadString(TF_OpKernelConstruction* construction, const char* name,
                       TF_Status* status) {
  int32_t list_size = 0;
  int32_t bytes = 0;
  TF_OpKernelConstruction_GetAttrSize(construction, name, &list_size, &bytes,
                                      status);
  if (TF_GetCode(status) != TF_OK) return {};
  std::string value(static_cast<size_t>(bytes), '\0');
  TF_OpKernelConstruction_GetAttrString(construction, name, value.data(),
                                        value.size(), status);
  return value;
}

}  // namespace

void ReadAttributes(TF_OpKernelConstruction* construction,
                    CollectiveAttributes* attributes, TF_Status* status) {
  const auto read_int = [&](const char* name) {
    return static_cast<int32_t>(ReadInt(construction, name, status));
  };
  attributes->name = ReadString(construction, "tensor_name", status);
  attributes->process_set = ReadInt(construction, "process_set", status);
  if (attributes->kind != TFR_JOIN) {
    attributes->eager = ReadBool(construction, "eager", status);
  }
  switch (attributes->kind) {
    case TFR_ALLREDUCE:
    case TFR_REDUCESCATTER:
      attributes->reduce_op = read_int("reduce_op");
      attributes->prescale = ReadFactor(construction, "prescale_bits", status);
      attributes->postscale =
          ReadFactor(construction, "postscale_bits", status);
      if (attributes->kind == TFR_ALLREDUCE) {
        attributes->wire_dtype = read_int("wire_dtype");
      }
      break;
    case TFR_BROADCAST:
      attributes->root = read_int("root");
      break;
    default:
      break;
  }
}

}  // namespace tfring
