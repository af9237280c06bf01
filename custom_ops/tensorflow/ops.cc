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

// Each tensor has rows; how many there will be is known when the ranks have
// met. The C API cannot say "these dimensions but the first", so Python sets
// what is known.
void OtherRows(TF_ShapeInferenceContext* context, TF_Status* status) {
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

void Scalar(TF_ShapeInferenceContext* context, TF_Status* status) {
  const ScopedShape shape(TF_ShapeInferenceContextScalar(context));
  TF_ShapeInferenceContextSetOutput(context, 0, shape.get(), status);
}

void NoShapes(TF_ShapeInferenceContext*, TF_Status*) {}

struct Op {
  const char* name;
  std::initializer_list<const char*> inputs;
  std::initializer_list<const char*> outputs;
  std::initializer_list<const char*> attributes;
  void (*shapes)(TF_ShapeInferenceContext*, TF_Status*);
};

bool Register(const Op& op) {
  TF_OpDefinitionBuilder* builder = TF_NewOpDefinitionBuilder(op.name);
  for (const char* input : op.inputs) {
    TF_OpDefinitionBuilderAddInput(builder, input);
  }
  for (const char* output : op.outputs) {
    TF_OpDefinitionBuilderAddOutput(builder, output);
  }
  for (const char* attribute : op.attributes) {
    TF_OpDefinitionBuilderAddAttr(builder, attribute);
  }
  TF_OpDefinitionBuilderSetIsStateful(builder, true);
  TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, op.shapes);
  const ScopedStatus status = NewStatus();
  TF_RegisterOpDefinition(builder, status.get());
  return Ok(status);
}

constexpr char kName[] = "tensor_name: string";
constexpr char kSet[] = "process_set: int = 0";
// Whether the caller does nothing but wait, see TFR_LINGER.
constexpr char kEager[] = "eager: bool = false";
constexpr char kReduceOp[] = "reduce_op: int";
// float64 bit patterns, see attributes.cc.
constexpr char kPrescale[] = "prescale_bits: int";
constexpr char kPostscale[] = "postscale_bits: int";

[[maybe_unused]] const bool registered =
    Register({"TfringAllreduce",
              {"tensors: T"},
              {"results: T"},
              {kTypes, kName, kSet, kEager, kReduceOp, kPrescale, kPostscale,
               "wire_dtype: int = 0"},
              &SameShapes}) &&
    Register({"TfringAllgather",
              {"tensors: T"},
              {"results: T"},
              {kTypes, kName, kSet, kEager},
              &OtherRows}) &&
    Register({"TfringBroadcast",
              {"tensors: T"},
              {"results: T"},
              {kTypes, kName, kSet, kEager, "root: int"},
              &SameShapes}) &&
    Register({"TfringReducescatter",
              {"tensors: T"},
              {"results: T"},
              {kTypes, kName, kSet, kEager, kReduceOp, kPrescale, kPostscale},
              &OtherRows}) &&
    // splits: rows for each rank, (tensors, ranks); empty: equal parts.
    Register({"TfringAlltoall",
              {"tensors: T", "splits: int64"},
              {"results: T", "received_splits: int64"},
              {kTypes, kName, kSet, kEager},
              &OtherRows}) &&
    Register({"TfringBarrier", {}, {}, {kName, kSet, kEager}, &NoShapes}) &&
    Register(
        {"TfringJoin", {}, {"last_rank: int32"}, {kName, kSet}, &Scalar}) &&
    Register({"TfringQuery",
              {},
              {"answer: int32"},
              {"question: int", kSet},
              &Scalar});

}  // namespace
}  // namespace tfring
