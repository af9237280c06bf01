#include "custom_ops/core/collectives/reduction.h"

#include <cstring>

#include "custom_ops/core/collectives/store_elements.h"
#include "custom_ops/core/common/dtype.h"

namespace tfring {
void StageElements(const Operation& operation, const OperationTensor& tensor,
                   const char* from, uint64_t count, char* to, Stores stores) {
  const uint64_t element = tensor.staged_element_bytes;
  if (!tensor.is_narrowed()) {
    return CopyBytes(to, from, count * element, stores);
  }
  StoreElements(count, element, to, stores,
                [&](uint64_t first, uint64_t some, char* out) {
                  Narrow(tensor.dtype, tensor.staged_dtype, operation.prescale,
                         from + first * tensor.element_bytes, out, some);
                });
}

Reduction::Reduction(DataPlane* plane, const Operation& operation)
    : plane_(plane),
      operation_(operation),
      source_ranks_(plane->active_count()) {
  for (int p = 0; p < plane->local().local_size(); ++p) {
    if (plane->IsActive(plane->members().here()[static_cast<size_t>(p)])) {
      locals_.push_back(p);
    }
  }
  sources_.resize(locals_.size());
}

ReduceSpec Reduction::SpecOf(size_t tensor) const {
  return SpecOf(operation_, operation_.tensors[tensor], source_ranks_);
}

ReduceSpec Reduction::SpecOf(const Operation& operation,
                             const OperationTensor& tensor, int sources) {
  const bool average = operation.reduce_op == TFR_AVERAGE;
  ReduceSpec spec;
  spec.dtype = tensor.dtype;
  spec.op = average ? static_cast<int32_t>(TFR_SUM) : operation.reduce_op;
  spec.prescale = tensor.is_narrowed() ? 1.0 : operation.prescale;  // done
  spec.postscale = operation.postscale;
  spec.divisor = average ? sources : 1;
  spec.source_dtype = tensor.staged_dtype;
  return spec;
}

bool Reduction::Rounds(size_t tensor) const {
  return operation_.tensors[tensor].staged_dtype == operation_.wire_dtype;
}

Reduction::Partials Reduction::PartialsOf(size_t tensor) const {
  if (Rounds(tensor)) return Partials::kRounded;
  if (inputs_) return Partials::kInputs;
  const ReduceSpec spec = SpecOf(tensor);
  const bool scaled =
      spec.prescale != 1.0 || spec.postscale != 1.0 || spec.divisor != 1;
  const bool chooses = spec.op == TFR_MIN || spec.op == TFR_MAX;
  return !scaled && (chooses || !IsFloating(spec.dtype))
             ? Partials::kElements
             : Partials::kAccumulators;
}

ReduceSpec Reduction::StagedSpec(size_t tensor) const {
  ReduceSpec spec = SpecOf(tensor);
  spec.dtype = spec.source_dtype;
  return spec;
}

// ... without any factor.
ReduceSpec Reduction::PlainSpec(size_t tensor) const {
  ReduceSpec spec = StagedSpec(tensor);
  spec.prescale = 1.0;
  spec.divisor = 1;
  spec.postscale = 1.0;
  return spec;
}

uint64_t Reduction::partial_bytes(size_t tensor) const {
  const OperationTensor& of = operation_.tensors[tensor];
  return PartialsOf(tensor) == Partials::kAccumulators
             ? AccumulatorSize(of.dtype)
             : of.staged_element_bytes;
}

void Reduction::ReducePartial(size_t tensor, const void* const* sources,
                              int source_count, void* partials,
                              size_t count) const {
  ReduceSpec spec = StagedSpec(tensor);
  if (PartialsOf(tensor) == Partials::kAccumulators) {
    return tfring::ReducePartial(spec, sources, source_count, partials, count);
  }
  spec.postscale = 1.0;
  Reduce(spec, sources, source_count, partials, count);
}

void Reduction::MergePartials(size_t tensor, const void* const* partials,
                              int source_count, void* out, size_t count) const {
  if (PartialsOf(tensor) == Partials::kAccumulators) {
    return ReduceMerge(StagedSpec(tensor), partials, source_count, out, count);
  }
  Reduce(PlainSpec(tensor), partials, source_count, out, count);
}

void Reduction::ReduceFinal(size_t tensor, const void* const* partials,
                            int source_count, void* staged,
                            size_t count) const {
  switch (PartialsOf(tensor)) {
    case Partials::kInputs:
      return Reduce(StagedSpec(tensor), partials, source_count, staged, count);
    case Partials::kAccumulators:
      return tfring::ReduceFinal(StagedSpec(tensor), partials, source_count,
                                 staged, count);
    default:
      return MergePartials(tensor, partials, source_count, staged, count);
  }
}

void Reduction::Deliver(size_t tensor, const void* staged, void* out,
                        size_t count) const {
  const OperationTensor& of = operation_.tensors[tensor];
  if (!Rounds(tensor)) {
    std::memcpy(out, staged, count * of.element_bytes);
    return;
  }
  ReduceSpec spec = SpecOf(tensor);
  spec.prescale = 1.0;
  spec.divisor = 1;
  Reduce(spec, &staged, 1, out, count);
}

void Reduction::ListSources(uint64_t chunk, uint64_t offset, const char* own,
                            const void** sources) const {
  const LocalGroup& local = plane_->local();
  for (size_t p = 0; p < locals_.size(); ++p) {
    const bool is_own = own != nullptr && locals_[p] == local.local_rank();
    sources[p] = is_own ? own : local.slot(locals_[p], chunk) + offset;
  }
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
