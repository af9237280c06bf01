#include "custom_ops/core/collectives/adasum.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/collectives/adasum_math.h"
#include "custom_ops/core/collectives/allreduce.h"
#include "custom_ops/core/collectives/deliver.h"
#include "custom_ops/core/collectives/gather.h"
#include "custom_ops/core/collectives/reduce.h"
#include "custom_ops/core/collectives/reduction.h"
#include "custom_ops/core/collectives/store_elements.h"
#include "custom_ops/core/collectives/stream.h"

namespace tfring {
namespace {

// Elements of one tensor in a rank's final segment.
struct FinalPiece {
  size_t tensor;
  uint64_t at;     // in the stream of wide elements
  uint64_t first;  // element of the tensor
};

// One rank's final segment, in the tensors' own types.
class FinalSegment {
 public:
  void Add(const FinalPiece& piece, uint64_t bytes) {
    pieces_.push_back(piece);
    stream_.Add(bytes);
  }
  uint64_t size() const { return stream_.size(); }

  // Calls f(piece, offset, bytes, at) for the pieces in [begin, end): `offset`
  // within the piece, `at` from `begin`.
  template <typename F>
  void ForRange(uint64_t begin, uint64_t end, F&& f) const {
    stream_.ForRange(
        begin, end,
        [&](size_t p, uint64_t offset, uint64_t bytes, uint64_t at) {
          f(pieces_[p], offset, bytes, at - begin);
        });
  }

 private:
  std::vector<FinalPiece> pieces_;
  Stream stream_;
};

class AdasumJob {
 public:
  AdasumJob(DataPlane* plane, const Operation& operation)
      : plane_(plane),
        operation_(operation),
        reduction_(plane, operation),
        me_(static_cast<size_t>(plane->members().rank)) {
    stream_.Reserve(operation.tensors.size());
    for (const OperationTensor& tensor : operation.tensors) {
      stream_.Add(tensor.count * AccumulatorSize(tensor.dtype));
    }
    segments_.assign(static_cast<size_t>(plane->members().size),
                     {0, stream_.size()});
  }

  Status Run() {
    for (size_t distance = 1; distance < segments_.size(); distance *= 2) {
      TFR_RETURN_IF_ERROR(SwapHalves(distance));
      std::vector<AdasumProducts> products;
      TFR_RETURN_IF_ERROR(SumProducts(distance, &products));
      CombineHalves(distance, products);
    }
    return GatherSegments();
  }

 private:
  bool IsLower(size_t place, size_t distance) const {
    return (place & distance) == 0;
  }
  Range mine() const { return segments_[me_]; }

  // The half of a rank's segment that it keeps, or the one that it sends.
  Range HalfOf(size_t place, size_t distance, bool kept) const {
    const Range whole = segments_[place];
    const uint64_t middle = ShareBegin(whole.begin, whole.end, 1, 2);
    return IsLower(place, distance) == kept ? Range{whole.begin, middle}
                                            : Range{middle, whole.end};
  }

  Status SwapHalves(size_t distance) {
    const Range kept = HalfOf(me_, distance, true);
    const Range sent = HalfOf(me_, distance, false);
    theirs_.resize(kept.end - kept.begin);
    DeliverJob job;
    job.bytes.assign(segments_.size(), std::vector<uint64_t>(segments_.size()));
    for (size_t place = 0; place < segments_.size(); ++place) {
      const Range half = HalfOf(place, distance, false);
      job.bytes[place][place ^ distance] = half.end - half.begin;
    }
    job.read = [&](int, uint64_t begin, uint64_t end, char* at, Stores stores) {
      Read({sent.begin + begin, sent.begin + end}, at, stores);
    };
    job.write = [&](int, uint64_t begin, uint64_t end, const char* from) {
      std::memcpy(theirs_.data() + begin, from, end - begin);
    };
    TFR_RETURN_IF_ERROR(Deliver(plane_, job));
    Load(kept);
    for (size_t place = 0; place < segments_.size(); ++place) {
      segments_[place] = HalfOf(place, distance, true);
    }
    return Status::Ok();
  }

  // Copies a part of this rank's vector: of its inputs at first, then of what
  // it holds.
  void Read(Range range, char* to, Stores stores) const {
    if (loaded_) {
      return CopyBytes(to, own_.data() + (range.begin - own_begin_),
                       range.size(), stores);
    }
    stream_.ForRange(
        range.begin, range.end,
        [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
          Widen(t, offset, bytes, to + (at - range.begin), stores);
        });
  }

  void Widen(size_t index, uint64_t offset, uint64_t bytes, char* to,
             Stores stores) const {
    const OperationTensor& tensor = operation_.tensors[index];
    if (tensor.input == nullptr) {
      std::memset(to, 0, bytes);
      return;
    }
    const size_t wide = AccumulatorSize(tensor.dtype);
    const char* const from =
        tensor.input + offset / wide * tensor.element_bytes;
    StoreElements(
        bytes / wide, wide, to, stores,
        [&](uint64_t first, uint64_t count, char* out) {
          const void* const source = from + first * tensor.element_bytes;
          ReducePartial(reduction_.SpecOf(index), &source, 1, out, count);
        });
  }

  // From now on this rank holds its vector itself. Later segments lie inside.
  void Load(Range range) {
    if (loaded_) return;
    own_.resize(range.end - range.begin);
    Read(range, own_.data(), Stores::kPlain);
    own_begin_ = range.begin;
    loaded_ = true;
  }

  char* Own(uint64_t at) { return own_.data() + (at - own_begin_); }
  const char* Theirs(uint64_t at) const {
    return theirs_.data() + (at - mine().begin);
  }

  // Calls f(tensor, own, theirs, count) for the tensors in the segment.
  template <typename F>
  void ForSegment(F&& f) {
    stream_.ForRange(mine().begin, mine().end,
                     [&](size_t t, uint64_t, uint64_t bytes, uint64_t at) {
                       if (operation_.tensors[t].dtype == TFR_FLOAT64) {
                         f(t, reinterpret_cast<double*>(Own(at)),
                           reinterpret_cast<const double*>(Theirs(at)),
                           bytes / sizeof(double));
                       } else {
                         f(t, reinterpret_cast<float*>(Own(at)),
                           reinterpret_cast<const float*>(Theirs(at)),
                           bytes / sizeof(float));
                       }
                     });
  }

  // Of whole tensors: those of the segments, added up over the ranks that hold
  // the two vectors. The ranks of a pair get the same numbers.
  Status SumProducts(size_t distance, std::vector<AdasumProducts>* sums) {
    std::vector<AdasumProducts> products(operation_.tensors.size());
    const bool lower = IsLower(me_, distance);
    ForSegment([&](size_t t, auto* own, const auto* theirs, size_t count) {
      products[t] =
          lower ? Multiply(own, theirs, count) : Multiply(theirs, own, count);
    });
    const size_t bytes = products.size() * sizeof(AdasumProducts);
    std::string all;
    TFR_RETURN_IF_ERROR(GatherSmall(
        plane_,
        std::string(reinterpret_cast<const char*>(products.data()), bytes),
        &all));
    sums->assign(products.size(), {});
    const size_t first = me_ / (2 * distance) * (2 * distance);
    for (size_t place = first; place < first + 2 * distance; ++place) {
      if (bytes == 0) break;
      std::memcpy(products.data(), all.data() + place * bytes, bytes);
      for (size_t t = 0; t < products.size(); ++t) (*sums)[t].Add(products[t]);
    }
    return Status::Ok();
  }

  void CombineHalves(size_t distance,
                     const std::vector<AdasumProducts>& products) {
    const bool lower = IsLower(me_, distance);
    ForSegment([&](size_t t, auto* own, const auto* theirs, size_t count) {
      const AdasumFactors factors(products[t]);
      Combine(own, lower ? factors.a : factors.b, theirs,
              lower ? factors.b : factors.a, count);
    });
  }

  FinalSegment FinalSegmentOf(size_t place) const {
    FinalSegment segment;
    stream_.ForRange(
        segments_[place].begin, segments_[place].end,
        [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
          const OperationTensor& tensor = operation_.tensors[t];
          const size_t wide = AccumulatorSize(tensor.dtype);
          segment.Add({t, at, offset / wide},
                      bytes / wide * tensor.element_bytes);
        });
    return segment;
  }

  // Scales and rounds a part of a piece of this rank's segment.
  void Narrow(const FinalPiece& piece, uint64_t offset, uint64_t bytes,
              char* to, Stores stores) {
    const OperationTensor& tensor = operation_.tensors[piece.tensor];
    const uint64_t element = tensor.element_bytes;
    const size_t wide = AccumulatorSize(tensor.dtype);
    const char* const from = Own(piece.at + offset / element * wide);
    StoreElements(bytes / element, element, to, stores,
                  [&](uint64_t first, uint64_t count, char* out) {
                    const void* const source = from + first * wide;
                    ReduceFinal(reduction_.SpecOf(piece.tensor), &source, 1,
                                out, count);
                  });
  }

  // Null where the output is not wanted.
  char* OutputAt(const FinalPiece& piece, uint64_t offset) const {
    const OperationTensor& tensor = operation_.tensors[piece.tensor];
    if (tensor.output == nullptr) return nullptr;
    return tensor.output + piece.first * tensor.element_bytes + offset;
  }

  // Inputs may be overwritten from here on.
  Status GatherSegments() {
    std::vector<FinalSegment> segments;
    GatherJob job;
    for (size_t place = 0; place < segments_.size(); ++place) {
      segments.push_back(FinalSegmentOf(place));
      job.bytes.push_back(segments.back().size());
    }
    const FinalSegment& mine = segments[me_];
    job.read = [&](uint64_t begin, uint64_t end, char* to, Stores stores) {
      mine.ForRange(
          begin, end,
          [&](const FinalPiece& piece, uint64_t offset, uint64_t bytes,
              uint64_t at) { Narrow(piece, offset, bytes, to + at, stores); });
    };
    job.write = [&](int rank, uint64_t begin, uint64_t end, const char* from) {
      segments[static_cast<size_t>(rank)].ForRange(
          begin, end,
          [&](const FinalPiece& piece, uint64_t offset, uint64_t bytes,
              uint64_t at) {
            char* output = OutputAt(piece, offset);
            if (output != nullptr) std::memcpy(output, from + at, bytes);
          });
    };
    TFR_RETURN_IF_ERROR(Gather(plane_, job));
    mine.ForRange(0, mine.size(),
                  [&](const FinalPiece& piece, uint64_t offset, uint64_t bytes,
                      uint64_t) {
                    char* output = OutputAt(piece, offset);
                    if (output == nullptr) return;
                    Narrow(piece, offset, bytes, output, Stores::kPlain);
                  });
    return Status::Ok();
  }

  DataPlane* const plane_;
  const Operation& operation_;
  const Reduction reduction_;
  const size_t me_;
  Stream stream_;  // all tensors as float32 or float64
  // What of the stream each rank holds; the same on all ranks.
  std::vector<Range> segments_;
  std::vector<char> own_;  // the stream from own_begin_ on
  uint64_t own_begin_ = 0;
  bool loaded_ = false;
  std::vector<char> theirs_;  // the partner's vector, this rank's segment
};

}  // namespace

Status Adasum(DataPlane* plane, const Operation& operation) {
  // One rank alone only scales.
  if (plane->members().size == 1) return Allreduce(plane, operation);
  return AdasumJob(plane, operation).Run();
}

}  // namespace tfring
