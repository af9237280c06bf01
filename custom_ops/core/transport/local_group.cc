#include "custom_ops/core/transport/local_group.h"

#include <algorithm>
#include <new>

namespace tfring {
namespace {

constexpr uint64_t kMagic = 0x3230676e69726674u;  // "tfring02"
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
      static_cast<uint64_t>(local_size) + 1 + kLargestGrowth;
  return SlotsOffset(*this) +
         tuning.depth * (chunks_per_place * tuning.chunk_bytes +
                         remote_chunks * meeting_chunk_bytes);
}

LocalGroup::LocalGroup(SharedMemory memory, const LocalGroupShape& shape,
                       int local_rank, bool yield, int copy_threads)
    : memory_(std::move(memory)),
      shape_(shape),
      local_rank_(local_rank),
      yield_(yield),
      copy_threads_(copy_threads),
      ranks_(reinterpret_cast<RankState*>(memory_.data() + RanksOffset())),
      agreement_(memory_.data() + AgreementOffset(shape)),
      slots_(memory_.data() + SlotsOffset(shape)) {}

void LocalGroup::Initialize() {
  for (int p = 0; p < shape_.local_size; ++p) new (&ranks_[p]) RankState();
  new (memory_.data()) Header{kMagic, shape_};
}

Status LocalGroup::ShapeIn(const SharedMemory& memory, uint64_t nonce,
                           LocalGroupShape* shape) {
  if (memory.size() >= sizeof(Header)) {
    const Header& header = *reinterpret_cast<const Header*>(memory.data());
    *shape = header.shape;
    if (header.magic == kMagic && shape->nonce == nonce &&
        shape->TotalBytes() == memory.size()) {
      return Status::Ok();
    }
  }
  return Unavailable(
      "the shared memory offered by this host's first rank is not that of this "
      "job; are two jobs meeting under one session name?");
}

int LocalGroup::Slowest() const {
  int slowest = -1;
  uint64_t least = kNothing;
  for (int p = 0; p < shape_.local_size; ++p) {
    if (p == local_rank_) continue;
    uint64_t passed = 0;
    for (const auto counter :
         {&RankState::staged, &RankState::reduced, &RankState::taken}) {
      passed += ValueOf(p, {counter, 0});
    }
    if (passed < least) slowest = p;
    least = std::min(least, passed);
  }
  return slowest;
}

char* LocalGroup::slot(int local, uint64_t chunk) const {
  const uint64_t place = static_cast<uint64_t>(local) * shape_.tuning.depth +
                         chunk % shape_.tuning.depth;
  return slots_ + place * shape_.tuning.chunk_bytes;
}

char* LocalGroup::result(uint64_t chunk) const {
  return slot(shape_.local_size, chunk);
}

char* LocalGroup::partial(uint64_t chunk) const {
  char* begin = slot(shape_.local_size + 1, 0);
  return begin + chunk % shape_.tuning.depth * kLargestGrowth *
                     shape_.tuning.chunk_bytes;
}

char* LocalGroup::remote(uint64_t chunk, uint64_t ordinal) const {
  char* begin =
      slot(shape_.local_size + 1 + static_cast<int>(kLargestGrowth), 0);
  const uint64_t place =
      chunk % shape_.tuning.depth * shape_.remote_chunks + ordinal;
  return begin + place * shape_.meeting_chunk_bytes;
}

}  // namespace tfring
