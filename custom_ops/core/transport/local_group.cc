#include "custom_ops/core/transport/local_group.h"

#include <new>

namespace tfring {
namespace {

constexpr uint64_t kMagic = 0x3130676e69726674u;  // "tfring01"
constexpr uint64_t kPage = 4096;
// An accumulator is at most eight times as large as its element (int8).
constexpr uint64_t kLargestGrowth = 8;

struct Header {
  uint64_t magic;
  LocalGroupShape shape;
};

uint64_t Align(uint64_t size) { return (size + kPage - 1) / kPage * kPage; }

uint64_t RanksOffset() { return Align(sizeof(Header)); }
uint64_t AgreementOffset(const LocalGroupShape& shape) {
  return RanksOffset() +
         Align(sizeof(RankState) * static_cast<uint64_t>(shape.local_size));
}
uint64_t SlotsOffset(const LocalGroupShape& shape) {
  return AgreementOffset(shape) + Align(shape.agreement_bytes);
}

}  // namespace

uint64_t LocalGroupShape::TotalBytes() const {
  const uint64_t chunks_per_place =
      static_cast<uint64_t>(local_size) + 1 + kLargestGrowth + remote_chunks;
  return SlotsOffset(*this) + chunks_per_place * depth * chunk_bytes;
}

LocalGroup::LocalGroup(SharedMemory memory, const LocalGroupShape& shape,
                       int local_rank, int64_t spin_ns, bool yield)
    : memory_(std::move(memory)),
      shape_(shape),
      local_rank_(local_rank),
      spin_ns_(spin_ns),
      yield_(yield),
      ranks_(reinterpret_cast<RankState*>(memory_.data() + RanksOffset())),
      agreement_(memory_.data() + AgreementOffset(shape)),
      slots_(memory_.data() + SlotsOffset(shape)) {}

void LocalGroup::Initialize() {
  for (int p = 0; p < shape_.local_size; ++p) new (&ranks_[p]) RankState();
  new (memory_.data()) Header{kMagic, shape_};
}

Status LocalGroup::Check() const {
  const Header& header = *reinterpret_cast<const Header*>(memory_.data());
  const LocalGroupShape& theirs = header.shape;
  if (header.magic != kMagic || theirs.nonce != shape_.nonce ||
      theirs.local_size != shape_.local_size || theirs.depth != shape_.depth ||
      theirs.chunk_bytes != shape_.chunk_bytes ||
      theirs.remote_chunks != shape_.remote_chunks) {
    return Unavailable(
        "the shared memory offered by this host's first rank is not that of "
        "this job; are two jobs meeting under one session name?");
  }
  return Status::Ok();
}

char* LocalGroup::slot(int local, uint64_t chunk) const {
  const uint64_t place =
      static_cast<uint64_t>(local) * shape_.depth + chunk % shape_.depth;
  return slots_ + place * shape_.chunk_bytes;
}

char* LocalGroup::result(uint64_t chunk) const {
  return slot(shape_.local_size, chunk);
}

char* LocalGroup::partial(uint64_t chunk) const {
  char* begin = slot(shape_.local_size + 1, 0);
  return begin + chunk % shape_.depth * kLargestGrowth * shape_.chunk_bytes;
}

char* LocalGroup::remote(uint64_t chunk, uint64_t ordinal) const {
  char* begin =
      slot(shape_.local_size + 1 + static_cast<int>(kLargestGrowth), 0);
  const uint64_t place = chunk % shape_.depth * shape_.remote_chunks + ordinal;
  return begin + place * shape_.chunk_bytes;
}

}  // namespace tfring
