// Adasum of a list of tensors (Maleki et al., "Scaling Distributed Training
// with Adaptive Summation", arXiv:2006.02924), tensor by tensor:
//
//   Adasum(a, b) = (1 - a.b / (2 |a|^2)) a + (1 - a.b / (2 |b|^2)) b
//
// Orthogonal vectors add up, parallel ones are averaged; a vector without
// length leaves the other as it is. More than two go up a tree: ranks at
// distance 1 first, then pairs of pairs; `a` is the lower ranks' vector. The
// number of ranks is a power of two.
//
// Vector halving: on level k a rank and its partner at distance 2^k hold the
// same segment of two vectors. Each sends the other one half of it and keeps
// the other half, so that both ends of the pair work (deliver.h). They multiply
// their halves, add up the products over the 2^(k+1) ranks that hold the two
// vectors, in rank order, and combine. At last everyone gets everyone's
// segment (gather.h), so all have the same bits.
//
// N ranks, S bytes: log2 N exchanges that send S(N-1)/N bytes in all, log2 N
// gathers of 24 bytes per tensor and rank, one gather of S/N bytes per rank.
// 16-bit types travel and are kept as float32 until the last gather; products
// are float64. Working memory per rank: S of those wider bytes, half for the
// own segment and half for the partner's.
#ifndef TFRING_CORE_COLLECTIVES_ADASUM_H_
#define TFRING_CORE_COLLECTIVES_ADASUM_H_

#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring {

// Outputs must have been allocated. A tensor without `input` counts as zeros,
// one without `output` is not wanted here.
Status Adasum(DataPlane* plane, const Operation& operation);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_ADASUM_H_
