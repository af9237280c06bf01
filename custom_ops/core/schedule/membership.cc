#include "custom_ops/core/schedule/membership.h"

#include <string>
#include <utility>

namespace tfring {
namespace {

std::vector<std::string> HostLabels(const GroupMembers& members) {
  std::vector<std::string> labels;
  for (size_t h = 0; h < members.on_host.size(); ++h) {
    const int place = members.PartnerOn(static_cast<int>(h));
    labels.push_back(StrCat("rank ", members.RankAt(place), " (host ",
                            members.host_names[h], ")"));
  }
  return labels;
}

}  // namespace

Membership::Membership(const GroupMembers& members,
                       std::unique_ptr<LocalGroup> local,
                       std::vector<HostSockets> data, Faults faults,
                       Failures* failures, const GroupOptions& options)
    : number_(options.number),
      members_(members),
      failures_(failures),
      faults_(std::move(faults)),
      local_(std::move(local)) {
  if (!data.empty()) {
    mesh_ = std::make_unique<Mesh>(members_.host, std::move(data),
                                   HostLabels(members_), &failure_);
  }
  group_ = std::make_unique<Group>(&members_, local_.get(), mesh_.get(),
                                   &failure_, &faults_, options);
  failure_.OnChange([this] { group_->OnFailure(); });
  failures_->Add(&failure_);
}

Membership::~Membership() {
  failures_->Remove(&failure_);
  failure_.OnChange(nullptr);
}

Status Membership::Start(const std::shared_ptr<Membership>& membership,
                         Control* control) {
  if (membership->failure_.event_fd() < 0) {
    return ResourceExhausted("there is no descriptor left for an eventfd");
  }
  membership->group_->Start(control);
  if (control != nullptr) {
    control->AddGroup(std::make_shared<ControlGroup>(
        membership->number_, membership->members_, membership));
  }
  return Status::Ok();
}

void Membership::AddStats(tfr_stats* stats) const {
  const GroupStats& group = group_->stats();
  stats->collectives += group.collectives;
  stats->tensors += group.tensors;
  stats->payload_bytes += group.payload_bytes;
  stats->travel_bytes += group.travel_bytes;
  const Timing& timing = group_->timing();
  stats->wait_ns += timing.wait_ns();
  stats->queue_ns += timing.queue_ns();
  stats->transfer_ns += timing.transfer_ns();
  stats->wire_bytes_sent += mesh_ == nullptr ? 0 : mesh_->bytes_sent();
  stats->staging_bytes += mesh_ == nullptr ? 0 : mesh_->memory_bytes();
  stats->staging_bytes += group_->pinned_bytes();
  // Shared by the host's ranks; its pages stay as long as the group.
  stats->staging_bytes += local_->memory().ResidentBytes() /
                          static_cast<uint64_t>(local_->local_size());
}

void Membership::AddWaits(uint64_t* ns) const {
  for (int place = 0; place < members_.size; ++place) {
    ns[members_.RankAt(place)] += group_->timing().waited_for(place);
  }
}

void Membership::CloseAll() {
  if (mesh_ != nullptr) mesh_->CloseAll();
}

}  // namespace tfring
