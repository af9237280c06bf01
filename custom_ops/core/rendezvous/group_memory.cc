#include "custom_ops/core/rendezvous/group_memory.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "custom_ops/core/common/sha256.h"
#include "custom_ops/core/schedule/agreement.h"

namespace tfring {
namespace {

// A chunk of every rank stays inside a second-level cache of 1 MiB together
// with what it is reduced into; `tfring.bench` compares sizes.
constexpr uint64_t kLocalChunkBytes = 256 * 1024;
// Between hosts: up to five of these are under way, more than a link of
// 10 Gbit/s holds in 1 ms, and they still stay in the cache.
constexpr uint64_t kHostsChunkBytes = 256 * 1024;
constexpr uint64_t kDepth = 4;
constexpr uint64_t kHostsDepth = 8;
// Looking for this long costs less than one sleep and wake-up.
constexpr int64_t kSpinNs = 50 * 1000;
// With more ranks than processors a spin takes the processor from the rank
// that is waited for.
constexpr int64_t kCrowdedSpinNs = 5 * 1000;

Status ShapeOf(const GroupMembers& members, const MemoryOptions& options,
               LocalGroupShape* shape) {
  shape->local_size = static_cast<int>(members.here().size());
  if (shape->local_size > kMaxLocalRanks) {
    return InvalidArgument(
        StrCat("at most ", kMaxLocalRanks,
               " ranks can share a host. Received: ", shape->local_size));
  }
  shape->agreement_bytes = Agreement::Bytes(shape->local_size);
  shape->depth = members.host_count() > 1 ? kHostsDepth : kDepth;
  shape->chunk_bytes = options.chunk_bytes;
  if (shape->chunk_bytes == 0) {
    shape->chunk_bytes =
        members.host_count() > 1 ? kHostsChunkBytes : kLocalChunkBytes;
  }
  shape->chunk_bytes = std::max<uint64_t>(shape->chunk_bytes / 64 * 64, 64);
  shape->remote_chunks =
      static_cast<uint64_t>(members.size - shape->local_size);
  return Status::Ok();
}

std::unique_ptr<LocalGroup> MakeLocal(const GroupMembers& members,
                                      const MemoryOptions& options,
                                      const LocalGroupShape& shape,
                                      SharedMemory memory) {
  return std::make_unique<LocalGroup>(std::move(memory), shape,
                                      members.local_rank(), options.spin_ns,
                                      options.crowded);
}

}  // namespace

std::string MemoryPlace::Encode() const {
  return StrCat(pid, " ", fd, " ", nonce);
}

MemoryPlace MemoryPlace::Decode(const std::string& text) {
  MemoryPlace place;
  std::istringstream(text) >> place.pid >> place.fd >> place.nonce;
  return place;
}

MemoryOptions ChooseMemoryOptions(uint64_t chunk_bytes, int spin_us,
                                  size_t ranks_here) {
  cpu_set_t set;
  CPU_ZERO(&set);
  const int processors =
      sched_getaffinity(0, sizeof(set), &set) == 0 ? CPU_COUNT(&set) : 1;
  MemoryOptions options;
  options.chunk_bytes = chunk_bytes;
  options.crowded = ranks_here > static_cast<size_t>(processors);
  options.spin_ns = options.crowded ? kCrowdedSpinNs : kSpinNs;
  if (spin_us >= 0) options.spin_ns = int64_t{spin_us} * 1000;
  return options;
}

Status CreateGroupMemory(const GroupMembers& members,
                         const MemoryOptions& options,
                         std::unique_ptr<LocalGroup>* out, MemoryPlace* place) {
  LocalGroupShape shape;
  TFR_RETURN_IF_ERROR(ShapeOf(members, options, &shape));
  TFR_RETURN_IF_ERROR(RandomBytes(&shape.nonce, sizeof(shape.nonce)));
  SharedMemory memory;
  TFR_RETURN_IF_ERROR(SharedMemory::Create(shape.TotalBytes(), &memory));
  *place = {getpid(), memory.fd(), shape.nonce};
  *out = MakeLocal(members, options, shape, std::move(memory));
  (*out)->Initialize();
  Agreement((*out)->agreement(), shape.local_size).Initialize();
  return Status::Ok();
}

Status OpenGroupMemory(const GroupMembers& members,
                       const MemoryOptions& options, const MemoryPlace& place,
                       std::unique_ptr<LocalGroup>* out) {
  LocalGroupShape shape;
  TFR_RETURN_IF_ERROR(ShapeOf(members, options, &shape));
  shape.nonce = place.nonce;
  SharedMemory memory;
  TFR_RETURN_IF_ERROR(
      SharedMemory::Open(place.pid, place.fd, shape.TotalBytes(), &memory));
  *out = MakeLocal(members, options, shape, std::move(memory));
  return (*out)->Check();
}

}  // namespace tfring
