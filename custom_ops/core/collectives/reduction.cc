#include "custom_ops/core/collectives/reduction.h"

namespace tfring {

Reduction::Reduction(DataPlane* plane, const Operation& operation)
    : plane_(plane), operation_(operation) {
  const bool average = operation.reduce_op == TFR_AVERAGE;
  spec_.op = average ? static_cast<int32_t>(TFR_SUM) : operation.reduce_op;
  spec_.prescale = operation.prescale;
  spec_.postscale = operation.postscale;
  spec_.divisor = average ? plane->active_count() : 1;
  spec_.dtype = 0;
  for (int p = 0; p < plane->local().local_size(); ++p) {
    if (plane->IsActive(plane->members().here()[static_cast<size_t>(p)])) {
      locals_.push_back(p);
    }
  }
  sources_.resize(locals_.size());
}

ReduceSpec Reduction::SpecOf(size_t tensor) const {
  ReduceSpec spec = spec_;
  spec.dtype = operation_.tensors[tensor].dtype;
  return spec;
}

const void* const* Reduction::SourcesAt(uint64_t chunk, uint64_t offset) {
  for (size_t p = 0; p < sources_.size(); ++p) {
    sources_[p] = plane_->local().slot(locals_[p], chunk) + offset;
  }
  return sources_.data();
}

const void* const* Reduction::SourcesAt(uint64_t chunk, uint64_t offset,
                                        const char* own) {
  SourcesAt(chunk, offset);
  for (size_t p = 0; p < sources_.size(); ++p) {
    if (locals_[p] == plane_->local().local_rank()) sources_[p] = own;
  }
  return sources_.data();
}

}  // namespace tfring
