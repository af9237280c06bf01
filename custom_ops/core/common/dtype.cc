#include "custom_ops/core/common/dtype.h"

#include "custom_ops/core/tfring.h"

namespace tfring {

size_t DtypeSize(int32_t dtype) {
  switch (dtype) {
    case TFR_UINT8:
    case TFR_INT8:
    case TFR_BOOL:
      return 1;
    case TFR_INT16:
    case TFR_UINT16:
    case TFR_BFLOAT16:
    case TFR_FLOAT16:
      return 2;
    case TFR_FLOAT32:
    case TFR_INT32:
      return 4;
    case TFR_FLOAT64:
    case TFR_INT64:
      return 8;
    default:
      return 0;
  }
}

const char* DtypeName(int32_t dtype) {
  switch (dtype) {
    case TFR_FLOAT32:
      return "float32";
    case TFR_FLOAT64:
      return "float64";
    case TFR_INT32:
      return "int32";
    case TFR_UINT8:
      return "uint8";
    case TFR_INT16:
      return "int16";
    case TFR_INT8:
      return "int8";
    case TFR_INT64:
      return "int64";
    case TFR_BOOL:
      return "bool";
    case TFR_BFLOAT16:
      return "bfloat16";
    case TFR_UINT16:
      return "uint16";
    case TFR_FLOAT16:
      return "float16";
    default:
      return nullptr;
  }
}

bool IsFloating(int32_t dtype) {
  return dtype == TFR_FLOAT16 || dtype == TFR_BFLOAT16 ||
         dtype == TFR_FLOAT32 || dtype == TFR_FLOAT64;
}

const char* ReduceOpName(int32_t op) {
  switch (op) {
    case TFR_AVERAGE:
      return "Average";
    case TFR_SUM:
      return "Sum";
    case TFR_ADASUM:
      return "Adasum";
    case TFR_MIN:
      return "Min";
    case TFR_MAX:
      return "Max";
    case TFR_PRODUCT:
      return "Product";
    default:
      return nullptr;
  }
}

}  // namespace tfring
