#include "custom_ops/core/rendezvous/group_memory.h"

#include <unistd.h>

#include <algorithm>
#include <sstream>
#include <utility>

#include "custom_ops/core/common/sha256.h"
#include "custom_ops/core/schedule/agreement.h"
#include "custom_ops/core/schedule/express.h"
#include "custom_ops/core/transport/tuning.h"

namespace tfring {
namespace {

// Between hosts: up to five of these are under way, or three per leader, more
// than a link of 10 Gbit/s holds in 1 ms, and they still stay in the cache. All
// hosts must cut alike, so nothing is measured.
constexpr uint64_t kHostsChunkBytes = 256 * 1024;
constexpr uint64_t kStages = 3;  // that a chunk passes before it is under way
constexpr uint64_t kUnderWay = 5;
constexpr uint64_t kUnderWayOfLeader = 3;

// Bounds the memory for chunks of other hosts, down to a page for each.
constexpr uint64_t kMeetingBytes = uint64_t{64} << 20;
constexpr uint64_t kSmallestChunk = 4096;

uint64_t MeetingChunkBytes(int ranks, const Tuning& tuning) {
  const uint64_t each =
      kMeetingBytes / (static_cast<uint64_t>(ranks) * tuning.depth);
  const uint64_t most = std::max(kSmallestChunk, each);
  return std::min(tuning.chunk_bytes, most / 64 * 64);
}

uint64_t HostsDepth(const GroupMembers& members) {
  const auto leaders = static_cast<uint64_t>(members.leaders());
  return kStages + std::max(kUnderWay, kUnderWayOfLeader * leaders);
}

// Of memory that this rank makes.
Status ShapeOf(const GroupMembers& members, const MemoryOptions& options,
               LocalGroupShape* shape) {
  shape->local_size = static_cast<int>(members.here().size());
  if (shape->local_size > kMaxLocalRanks) {
    return InvalidArgument(
        StrCat("at most ", kMaxLocalRanks,
               " ranks can share a host. Received: ", shape->local_size));
  }
  shape->agreement_bytes =
      Agreement::Bytes(shape->local_size) + Express::Bytes(shape->local_size);
  Tuning& tuning = shape->tuning;
  const bool alone = members.size == 1;  // nothing to choose for
  tuning = ChooseTuning(alone ? MachineCosts() : MeasuredCosts(),
                        shape->local_size, options.crowded);
  if (members.host_count() > 1) {
    tuning.chunk_bytes = kHostsChunkBytes;
    tuning.depth = HostsDepth(members);
  } else if (options.depth > 0) {
    tuning.depth = options.depth;
  }
  if (options.chunk_bytes > 0) tuning.chunk_bytes = options.chunk_bytes;
  tuning.chunk_bytes = std::max<uint64_t>(tuning.chunk_bytes / 64 * 64, 64);
  if (options.direct_bytes >= 0) {
    tuning.direct_bytes = static_cast<uint64_t>(options.direct_bytes);
  }
  if (options.spin_ns >= 0) tuning.spin_ns = options.spin_ns;
  shape->remote_chunks =
      static_cast<uint64_t>(members.size - shape->local_size);
  shape->meeting_chunk_bytes = MeetingChunkBytes(members.size, tuning);
  return Status::Ok();
}

std::unique_ptr<LocalGroup> MakeLocal(const GroupMembers& members,
                                      const MemoryOptions& options,
                                      const LocalGroupShape& shape,
                                      SharedMemory memory) {
  return std::make_unique<LocalGroup>(std::move(memory), shape,
                                      members.local_rank(), options.crowded,
                                      options.copy_threads);
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

void FitToProcessors(const std::vector<Processors>& here, size_t me,
                     MemoryOptions* options) {
  // More threads do not make one memory faster.
  constexpr size_t kMostCopyThreads = 4;
  const ProcessorShare share = ShareProcessors(here, me);
  options->crowded = share.crowded;
  if (options->copy_threads > 0) return;
  options->copy_threads =
      static_cast<int>(std::min(share.processors, kMostCopyThreads));
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
  SharedMemory memory;
  TFR_RETURN_IF_ERROR(SharedMemory::Open(place.pid, place.fd, &memory));
  LocalGroupShape shape;
  TFR_RETURN_IF_ERROR(LocalGroup::ShapeIn(memory, place.nonce, &shape));
  if (shape.local_size != static_cast<int>(members.here().size())) {
    return Unavailable(StrCat("the shared memory of process ", place.pid,
                              " is for ", shape.local_size, " ranks, not ",
                              members.here().size()));
  }
  *out = MakeLocal(members, options, shape, std::move(memory));
  return Status::Ok();
}

}  // namespace tfring
