// The ops as graphs see them. All are stateful: TensorFlow would otherwise
// fold, merge or drop collectives that other ranks wait for.
#include "tensorflow/c/ops.h"

#include <initializer_list>

#include "custom_ops/tensorflow/scoped.h"

namespace tfring {
namespace {

constexpr char kTypes[] =
    "T: list({half, bfloat16, float, double, int8, int16, int32, int64, "
    "uint8, uint16, bool}) >= 1";

// Output i has the shape of input i.
void SameShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t count = TF_ShapeInferenceContextNumInputs(context);
  for (int i = 0; i < count && TF_GetCode(status) == TF_OK; ++i) {
    const ScopedShape shape(TF_NewShapeHandle());
    TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (TF_GetCode(status) != TF_OK) return;
    TF_ShapeInferenceContextSetOutput(context, i, shape.get(), status);
  }
}

// Each input has rows; how many there are in all is known when they are
// gathered. The C API cannot say "these dimensions but the first", so Python
// sets what is known.
void GatheredShapes(TF_ShapeInferenceContext* context, TF_Status* status) {
  const int64_t count = TF_ShapeInferenceContextNumInputs(context);
  for (int i = 0; i < count && TF_GetCode(status) == TF_OK; ++i) {
    const ScopedShape shape(TF_NewShapeHandle());
    TF_ShapeInferenceContextGetInput(context, i, shape.get(), status);
    if (TF_GetCode(status) != TF_OK) return;
    TF_ShapeInferenceContextWithRankAtLeast(context, shape.get(), 1,
                                            shape.get(), status);
  }
  if (TF_GetCode(status) == TF_OK) {
    TF_ShapeInferenceContextSetUnknownShape(context, status);
  }
}

void NoShapes(TF_ShapeInferenceContext*, TF_Status*) {}

using ShapeFunction = void (*)(TF_ShapeInferenceContext*, TF_Status*);

bool RegisterOp(const char* name, bool has_tensors,
                std::initializer_list<const char*> attributes,
                ShapeFunction shape_function) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(name);
  if (has_tensors) {
    TF_OpDefinitionBuilderAddInput(builder, "tensors: T");
    TF_OpDefinitionBuilderAddOutput(builder, "results: T");
    TF_OpDefinitionBuilderAddAttr(builder, kTypes);
  }
  TF_OpDefinitionBuilderAddAttr(builder, "tensor_name: string");
  for (const char* attribute : attributes) {
    TF_OpDefinitionBuilderAddAttr(builder, attribute);
  }
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, shape_function);
  const ScopedStatus status = NewStatus();
  TF_RegisterOpDefinition(builder, status.get());
  return Ok(status);
}

[[maybe_unused]] const bool registered =
    RegisterOp("TfringAllreduce", true,
               {"reduce_op: int", "prescale_bits: int", "postscale_bits: int"},
               &SameShapes) &&
    RegisterOp("TfringAllgather", true, {}, &GatheredShapes) &&
    RegisterOp("TfringBroadcast", true, {"root: int"}, &SameShapes) &&
    RegisterOp("TfringBarrier", false, {}, &NoShapes);

}  // namespace
}  // namespace tfring
