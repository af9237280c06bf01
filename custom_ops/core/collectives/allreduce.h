// Allreduce of a list of tensors: every rank gets, element by element, the
// reduction of all ranks' inputs.
//
// One host, two ranks ("direct"): each copies a chunk of its input into its
// slot, then reduces both slots into its output. One pass in, one pass out.
//
// One host, more ranks and bytes ("shared"): copy the shares of others in;
// reduce the own 1/L share of the chunk, from the slots of others and the own
// input into the result chunk and the output; copy the shares of others out.
// Memory traffic per rank and byte: 3 reads and 2 writes, less 2/L, whatever L.
// Few bytes go directly whatever L, which saves a wait (transport/tuning.h).
//
// Peers' memory is not read directly (process_vm_readv), which would save the
// pass in: on a virtual machine of two processors the kernel took 13 us for 64
// KiB and 227 us for 1 MiB, copies through shared memory 6 and 66.
//
// H hosts: host_reduce.h, along a plan of host_algorithm.h. 2(H-1)/H of the
// bytes per host, however many ranks it has.
//
// With a wire dtype, wide floats are narrowed on the way into the slots, and
// partial results on the way to other hosts (reduction.h). Inside a host
// results keep the tensor's dtype: a shared result chunk then takes a smaller
// chunk of the stream, by the ratio of the widths.
//
// The order of reduction depends on the ranks' places, and with other plans
// between hosts than the direct one on where an element lies in the whole list,
// never on chunks: the same ranks give the same bits, alike on every rank.
#ifndef TFRING_CORE_COLLECTIVES_ALLREDUCE_H_
#define TFRING_CORE_COLLECTIVES_ALLREDUCE_H_

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// Outputs must have been allocated.
Status Allreduce(DataPlane* plane, const Operation& operation);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ALLREDUCE_H_
