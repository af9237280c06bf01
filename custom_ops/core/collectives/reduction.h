// What one reducing collective does to its elements, and where the ranks of
// this host have put them: the part that allreduce and reducescatter share.
#ifndef TFRING_CORE_COLLECTIVES_REDUCTION_H_
#define TFRING_CORE_COLLECTIVES_REDUCTION_H_

#include <cstdint>
#include <vector>

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/collectives/reduce.h"
#include "custom_ops/core/common/copy.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// Fills `to` with elements as they are staged: narrowed and scaled if they
// travel in a wire dtype.
void StageElements(const Operation& operation, const OperationTensor& tensor,
                   const char* from, uint64_t count, char* to, Stores stores);

class Reduction {
 public:
  Reduction(DataPlane* plane, const Operation& operation);

  // From slots to outputs, inside a host.
  ReduceSpec SpecOf(size_t tensor) const;
  // ... of as many sources.
  static ReduceSpec SpecOf(const Operation& operation,
                           const OperationTensor& tensor, int sources);

  // What travels between hosts before it is added up.
  enum class Partials {
    // Elements, each of one rank, since no host has more: nothing is lost.
    kInputs,
    // Elements, since no step can lose anything: sums and products of integers,
    // which wrap in any width, and the least or largest of anything, unscaled.
    kElements,
    // Of the wire dtype: divided before they are rounded, so that an Average
    // cannot overflow, and scaled after they have arrived.
    kRounded,
    // Else: 16-bit floats as float32, so that only the result is rounded, and
    // integers that are to be divided or scaled in 8 bytes, int64 in 16.
    kAccumulators
  };
  Partials PartialsOf(size_t tensor) const;
  bool Rounds(size_t tensor) const;  // kRounded?
  // Hosts that have one rank each and send straight to the owner of a part do
  // not add up before.
  void SendInputs() { inputs_ = true; }

  // The same as SpecOf over several hosts, in steps.
  uint64_t partial_bytes(size_t tensor) const;  // of an element
  void ReducePartial(size_t tensor, const void* const* sources,
                     int source_count, void* partials, size_t count) const;
  void MergePartials(size_t tensor, const void* const* partials,
                     int source_count, void* out, size_t count) const;
  // ... into staged elements: what travels to all.
  void ReduceFinal(size_t tensor, const void* const* partials, int source_count,
                   void* staged, size_t count) const;
  // ... into elements of the output.
  void Deliver(size_t tensor, const void* staged, void* out,
               size_t count) const;

  // How many sources this host has: ranks that have not joined.
  int source_count() const { return static_cast<int>(sources_.size()); }
  // Lists where they are that were staged at `offset` of the chunk; unless it
  // is null, `own` is as good as this rank's slot, and nearer.
  void ListSources(uint64_t chunk, uint64_t offset, const char* own,
                   const void** sources) const;
  // Where they are that were staged at `offset` of the chunk. Valid until the
  // next call.
  const void* const* SourcesAt(uint64_t chunk, uint64_t offset);
  // The same, but this rank's own is `own`: as good as its slot, and nearer.
  const void* const* SourcesAt(uint64_t chunk, uint64_t offset,
                               const char* own);

 private:
  ReduceSpec StagedSpec(size_t tensor) const;
  ReduceSpec PlainSpec(size_t tensor) const;

  const DataPlane* const plane_;
  const Operation& operation_;
  const int source_ranks_;
  bool inputs_ = false;
  std::vector<int> locals_;  // where the sources are
  std::vector<const void*> sources_;
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_REDUCTION_H_
