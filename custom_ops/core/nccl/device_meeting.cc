// How a device plane's ranks meet: see meeting.h.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "custom_ops/core/collectives/gather.h"
#include "custom_ops/core/nccl/device_plane.h"

namespace tfring {
namespace {

bool IsSet(const char* variable) {
  const char* const value = std::getenv(variable);
  return value != nullptr && value[0] != '\0' && std::strcmp(value, "0") != 0;
}

Status GatherWords(DataPlane* plane, const GpuWord& mine,
                   std::vector<GpuWord>* words) {
  std::string all;
  TFR_RETURN_IF_ERROR(GatherSmall(
      plane, std::string(reinterpret_cast<const char*>(&mine), sizeof(mine)),
      &all));
  words->resize(all.size() / sizeof(GpuWord));
  std::memcpy(words->data(), all.data(), all.size());
  return Status::Ok();
}

}  // namespace

Status DevicePlane::Meet() {
  if (met_) return meeting_;
  met_ = true;
  std::vector<GpuWord> words;
  TFR_RETURN_IF_ERROR(GatherWords(plane_, Word(), &words));
  meeting_ = ChooseWays(plane_->members(), words, &ways_);
  if (!meeting_.ok()) return meeting_;
  if (ways_.nccl) {
    const Status connected = AgreeOnConnection(Connect(words));
    if (!connected.ok()) {
      SetCommunicator(nullptr);
      TFR_RETURN_IF_ERROR(Interrupted());
      ways_ = GpuWays();
      ways_.piece_bytes = words[0].piece_bytes;
      ways_.why_staged = connected.message();
      if (words[0].data == TFR_GPU_NCCL) meeting_ = connected;
    }
  }
  if (!ways_.why_staged.empty() && meeting_.ok()) Warn(ways_.why_staged);
  return meeting_;
}

// What this rank has to say. An id is made where one is needed, whoever turns
// out to use it.
GpuWord DevicePlane::Word() {
  GpuWord word;
  word.data = options_.data;
  word.hosts_by_tcp = options_.hosts_by_tcp ? 1 : 0;
  word.piece_bytes = static_cast<uint32_t>(
      std::min<uint64_t>(options_.piece_bytes, UINT32_MAX));
  word.shares = IsSet("NCCL_MULTI_RANK_GPU_ENABLE") ? 1 : 0;
  gpu_->bus_id().copy(word.bus_id, sizeof(word.bus_id) - 1);
  if (options_.data == TFR_GPU_STAGED) {
    constexpr char kReason[] = "its setting is TFRING_GPU_DATA=host";
    std::memcpy(word.reason, kReason, sizeof(kReason));
    return word;
  }
  Status status = NcclApi::Load(options_.nccl_library, &nccl_);
  if (status.ok() && plane_->members().leads()) {
    const int result = nccl_.GetUniqueId(&word.id);
    if (result != kNcclSuccess) {
      status = Internal(
          StrCat("ncclGetUniqueId failed: ", nccl_.GetErrorString(result)));
    }
  }
  if (!status.ok()) {
    status.message().copy(word.reason, sizeof(word.reason) - 1);
    return word;
  }
  word.nccl_version = nccl_.version;
  word.scales =
      nccl_.RedOpCreatePreMulSum != nullptr && nccl_.RedOpDestroy != nullptr
          ? 1
          : 0;
  return word;
}

Status DevicePlane::Connect(const std::vector<GpuWord>& words) {
  const std::vector<int> places = CommunicatorPlaces(plane_->members(), ways_);
  int rank = 0;
  while (places[static_cast<size_t>(rank)] != plane_->members().rank) ++rank;
  const auto communicator = std::make_shared<Communicator>(nccl_);
  SetCommunicator(communicator);
  return communicator->Init(words[static_cast<size_t>(places[0])].id, rank,
                            static_cast<int>(places.size()),
                            Deadline::After(options_.start_timeout_s),
                            [this] { return Interrupted(); });
}

// Either all ranks use what they have made or none does.
Status DevicePlane::AgreeOnConnection(const Status& mine) {
  GpuWord word;
  word.nccl_version = mine.ok() ? 1 : 0;
  mine.message().copy(word.reason, sizeof(word.reason) - 1);
  std::vector<GpuWord> words;
  TFR_RETURN_IF_ERROR(GatherWords(plane_, word, &words));
  for (size_t place = 0; place < words.size(); ++place) {
    if (words[place].nccl_version != 0) continue;
    return FailedPrecondition(
        StrCat("rank ", plane_->members().RankAt(static_cast<int>(place)),
               " cannot make an NCCL communicator: ", words[place].reason));
  }
  return Status::Ok();
}

// Once per group: its first rank says it.
void DevicePlane::Warn(const std::string& why) const {
  if (plane_->members().rank != 0) return;
  std::fprintf(stderr,
               "tfring: warning: tensors of GPUs travel through host memory, "
               "not by NCCL: %s\n",
               why.c_str());
}

}  // namespace tfring
