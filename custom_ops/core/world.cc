#include "custom_ops/core/world.h"

#include <utility>

namespace tfring {
namespace {

constexpr uint64_t kLargestChunk = uint64_t{1} << 30;

std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

Status CheckConfig(const tfr_config& config) {
  if (config.size < 1) {
    return InvalidArgument(
        StrCat("`size` must be at least 1. Received: size=", config.size));
  }
  if (config.rank < 0 || config.rank >= config.size) {
    return InvalidArgument(StrCat("`rank` must be in 0 to ", config.size - 1,
                                  ". Received: rank=", config.rank));
  }
  if (config.size > 1 &&
      (TextOf(config.store).empty() || TextOf(config.secret).empty())) {
    return InvalidArgument(
        StrCat("a job of ", config.size,
               " ranks needs the address of its store (TFRING_RENDEZVOUS) and "
               "a secret (TFRING_SECRET); tfringrun sets both"));
  }
  return Status::Ok();
}

BootstrapOptions BootstrapOptionsOf(const tfr_config& config) {
  BootstrapOptions options;
  options.rank = config.rank;
  options.size = config.size;
  options.host = TextOf(config.host);
  options.store = TextOf(config.store);
  options.secret = TextOf(config.secret);
  options.session = TextOf(config.session);
  options.interfaces = TextOf(config.interfaces);
  options.start_timeout_s = config.start_timeout_s;
  options.chunk_bytes = config.chunk_bytes;
  options.shared_memory = config.shared_memory != 0;
  options.spin_us = config.spin_us;
  return options;
}

std::vector<std::string> HostLabels(const GroupMembers& members) {
  std::vector<std::string> labels;
  for (size_t h = 0; h < members.on_host.size(); ++h) {
    labels.push_back(StrCat("rank ", members.RankAt(members.on_host[h].front()),
                            " (host ", members.host_names[h], ")"));
  }
  return labels;
}

}  // namespace

Status World::Create(const tfr_config& config, std::unique_ptr<World>* out) {
  TFR_RETURN_IF_ERROR(CheckConfig(config));
  std::unique_ptr<World> world(new World());
  TFR_RETURN_IF_ERROR(
      Faults::Parse(TextOf(config.faults), config.rank, &world->faults_));
  TFR_RETURN_IF_ERROR(world->Start(config));
  *out = std::move(world);
  return Status::Ok();
}

Status World::Start(const tfr_config& config) {
  Bootstrapped parts;
  TFR_RETURN_IF_ERROR(Bootstrap(BootstrapOptionsOf(config), &parts));
  identity_ = std::move(parts.identity);
  members_ = std::move(parts.members);
  local_ = std::move(parts.local);
  if (!parts.data.empty()) {
    mesh_ = std::make_unique<Mesh>(members_.host, std::move(parts.data),
                                   HostLabels(members_), &failure_);
  }
  GroupOptions options;
  options.warn_after_s = config.warn_after_s;
  options.fail_after_s = config.fail_after_s;
  group_ = std::make_unique<Group>(&members_, local_.get(), mesh_.get(),
                                   &failure_, &faults_, options);
  failure_.OnChange([this] { group_->OnFailure(); });
  if (members_.size > 1) {
    ControlEvents events;
    events.go = [this](const LogEntry& entry) { group_->OnGo(entry); };
    events.is_pending = [this](uint64_t uid) { return group_->IsPending(uid); };
    control_ = std::make_unique<Control>(&members_, std::move(parts.control),
                                         &failure_, std::move(events));
  }
  group_->Start(control_.get());
  return control_ == nullptr ? Status::Ok() : control_->Start();
}

World::~World() {
  if (group_ == nullptr) return;
  const uint64_t executed = group_->Stop();
  if (control_ != nullptr) control_->Leave(executed);
  control_.reset();
  failure_.OnChange(nullptr);
  group_.reset();
}

Status World::Submit(const tfr_request& request) {
  std::unique_ptr<Operation> operation;
  TFR_RETURN_IF_ERROR(Operation::Create(request, members_, &operation));
  if (operation->done == nullptr) {
    return InvalidArgument("`done` of a request must not be null");
  }
  return group_->Submit(std::move(operation));
}

Status World::Run(const tfr_request& request) {
  std::unique_ptr<Operation> operation;
  TFR_RETURN_IF_ERROR(Operation::Create(request, members_, &operation));
  return group_->Run(std::move(operation));
}

void World::Abort(const std::string& text) {
  const std::string full = StrCat("rank ", members_.rank, " failed: ", text);
  if (control_ != nullptr) {
    control_->Abort(full);
  } else {
    failure_.Abort(Unavailable(full));
  }
}

void World::Info(tfr_info* info) const {
  const int local = identity_.local_rank();
  int cross_rank = 0;
  int cross_size = 0;
  bool homogeneous = true;
  for (int h = 0; h < identity_.host_count(); ++h) {
    const auto ranks = identity_.on_host[static_cast<size_t>(h)].size();
    homogeneous = homogeneous && ranks == identity_.here().size();
    if (static_cast<int>(ranks) <= local) continue;
    if (h < identity_.host) ++cross_rank;
    ++cross_size;
  }
  info->rank = identity_.rank;
  info->size = identity_.size;
  info->local_rank = local;
  info->local_size = static_cast<int32_t>(identity_.here().size());
  info->cross_rank = cross_rank;
  info->cross_size = cross_size;
  info->host_count = identity_.host_count();
  info->homogeneous = homogeneous ? 1 : 0;
}

void World::Hosts(int32_t* hosts) const {
  for (const int host : identity_.host_of) *hosts++ = host;
}

void World::Stats(tfr_stats* stats) const {
  const GroupStats& group = group_->stats();
  stats->collectives = group.collectives;
  stats->tensors = group.tensors;
  stats->payload_bytes = group.payload_bytes;
  stats->wait_ns = group.wait_ns;
  stats->transfer_ns = group.transfer_ns;
  stats->control_messages = control_ == nullptr ? 0 : control_->messages_sent();
  stats->wire_bytes_sent = mesh_ == nullptr ? 0 : mesh_->bytes_sent();
  // Shared by the host's ranks; its pages stay until shutdown.
  stats->staging_bytes = local_->memory().ResidentBytes() /
                         static_cast<uint64_t>(local_->local_size());
  stats->staging_bytes_peak = stats->staging_bytes;
}

void World::AfterFork() {
  if (control_ != nullptr) control_->CloseAll();
  if (mesh_ != nullptr) mesh_->CloseAll();
}

}  // namespace tfring
