// The op that asks about ranks when it runs.
#include <cstdint>
#include <memory>

#include "custom_ops/core/tfring.h"
#include "custom_ops/tensorflow/query.h"
#include "custom_ops/tensorflow/scoped.h"
#include "custom_ops/tensorflow/world_holder.h"
#include "tensorflow/c/kernels.h"

namespace tfring {
namespace {

void* CreateQuery(TF_OpKernelConstruction* construction) {
  auto query = std::make_unique<Query>();
  const ScopedStatus status = NewStatus();
  TF_OpKernelConstruction_GetAttrInt64(construction, "question",
                                       &query->question, status.get());
  if (Ok(status)) {
    TF_OpKernelConstruction_GetAttrInt64(construction, "process_set",
                                         &query->process_set, status.get());
  }
  if (!Ok(status)) {
    TF_OpKernelConstruction_Failure(construction, status.get());
    return nullptr;
  }
  return query.release();
}

void ComputeQuery(void* kernel, TF_OpKernelContext* context) {
  const auto& query = *static_cast<const Query*>(kernel);
  const ScopedStatus status = NewStatus();
  const ScopedTensor output(TF_AllocateOutput(context, 0, TF_INT32, nullptr, 0,
                                              sizeof(int32_t), status.get()));
  tfr_error error;
  if (Ok(status) &&
      CurrentWorld().With(
          [&](tfr_world* world) {
            auto* answer = static_cast<int32_t*>(TF_TensorData(output.get()));
            return Ask(world, query, answer, &error);
          },
          &error) != TFR_OK) {
    TF_SetStatus(status.get(), static_cast<TF_Code>(error.code), error.text);
  }
  if (!Ok(status)) TF_OpKernelContext_Failure(context, status.get());
}

void DeleteQuery(void* kernel) { delete static_cast<Query*>(kernel); }

bool RegisterQuery() {
  const ScopedStatus status = NewStatus();
  TF_RegisterKernelBuilder(
      "TfringQuery",
      TF_NewKernelBuilder("TfringQuery", "CPU", &CreateQuery, &ComputeQuery,
                          &DeleteQuery),
      status.get());
  return Ok(status);
}

[[maybe_unused]] const bool registered = RegisterQuery();

}  // namespace
}  // namespace tfring
