#include "custom_ops/core/nccl/meeting.h"

#include <map>
#include <set>
#include <utility>

#include "custom_ops/core/tfring.h"

namespace tfring {
namespace {

std::string NameOf(const GroupMembers& members, int place) {
  const auto host =
      static_cast<size_t>(members.host_of[static_cast<size_t>(place)]);
  return StrCat("rank ", members.RankAt(place), " (host ",
                members.host_names[host], ")");
}

// Ranks of one host that use one GPU; empty if there are none.
std::set<int> SharedGpu(const GroupMembers& members,
                        const std::vector<GpuWord>& words, int* first) {
  std::map<std::pair<int, std::string>, std::set<int>> users;
  for (int place = 0; place < members.size; ++place) {
    const auto p = static_cast<size_t>(place);
    std::set<int>& ranks = users[{members.host_of[p], words[p].bus_id}];
    ranks.insert(members.RankAt(place));
    if (ranks.size() > 1) *first = place;
  }
  for (const auto& [gpu, ranks] : users) {
    if (ranks.size() > 1) return ranks;
  }
  return {};
}

// Why NCCL cannot be used; empty if it can.
std::string Obstacle(const GroupMembers& members,
                     const std::vector<GpuWord>& words) {
  for (int place = 0; place < members.size; ++place) {
    const GpuWord& word = words[static_cast<size_t>(place)];
    if (word.nccl_version == 0) {
      return StrCat(NameOf(members, place), ": ", word.reason);
    }
    if (word.nccl_version != words[0].nccl_version) {
      return StrCat(NameOf(members, 0), " has NCCL ",
                    NcclApi::VersionText(words[0].nccl_version), ", ",
                    NameOf(members, place), " has ",
                    NcclApi::VersionText(word.nccl_version),
                    "; all ranks need the same");
    }
  }
  int place = 0;
  const std::set<int> ranks = SharedGpu(members, words, &place);
  if (ranks.empty()) return {};
  bool enabled = words[0].nccl_version >= NcclApi::kSharesGpus;
  for (const GpuWord& word : words) enabled = enabled && word.shares != 0;
  if (enabled) return {};
  const auto host =
      static_cast<size_t>(members.host_of[static_cast<size_t>(place)]);
  return StrCat(RankList(ranks), " of host ", members.host_names[host],
                " use one GPU (", words[static_cast<size_t>(place)].bus_id,
                "), which NCCL ", NcclApi::VersionText(words[0].nccl_version),
                " does only with NCCL_MULTI_RANK_GPU_ENABLE=1 on all ranks, "
                "from version ",
                NcclApi::VersionText(NcclApi::kSharesGpus),
                " on. Give each rank a GPU of its own (tfring.pin_gpu()), or "
                "set it");
}

}  // namespace

Status ChooseWays(const GroupMembers& members,
                  const std::vector<GpuWord>& words, GpuWays* ways) {
  *ways = GpuWays();
  ways->piece_bytes = words[0].piece_bytes;
  const int32_t wanted = words[0].data;
  if (wanted == TFR_GPU_STAGED) return Status::Ok();
  const std::string obstacle = Obstacle(members, words);
  if (!obstacle.empty()) {
    ways->why_staged = obstacle;
    if (wanted == TFR_GPU_AUTO) return Status::Ok();
    return FailedPrecondition(
        StrCat("collectives of GPU tensors are to use NCCL "
               "(TFRING_GPU_DATA=nccl), but cannot: ",
               obstacle));
  }
  ways->nccl = true;
  ways->hosts_by_tcp = words[0].hosts_by_tcp != 0 && members.host_count() > 1;
  ways->scales = true;
  for (const GpuWord& word : words) {
    ways->scales = ways->scales && word.scales != 0;
  }
  return Status::Ok();
}

std::vector<int> CommunicatorPlaces(const GroupMembers& members,
                                    const GpuWays& ways) {
  if (ways.hosts_by_tcp) return members.here();
  std::vector<int> all;
  for (int place = 0; place < members.size; ++place) all.push_back(place);
  return all;
}

}  // namespace tfring
