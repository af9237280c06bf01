#include "custom_ops/core/world.h"

#include <algorithm>
#include <utility>

namespace tfring {
namespace {

constexpr int kLargestDepth = 64;
constexpr int kMostCopyThreads = 64;
constexpr uint64_t kLargestChunk = uint64_t{1} << 30;

std::string TextOf(const char* text) { return text == nullptr ? "" : text; }

Status CheckCount(const char* name, int32_t value, int32_t most) {
  if (value >= 0 && value <= most) return Status::Ok();
  return InvalidArgument(StrCat("`", name, "` must be in 0 to ", most,
                                ". Received: ", name, "=", value));
}

Status CheckConfig(const tfr_config& config) {
  if (config.size < 1) {
    return InvalidArgument(
        StrCat("`size` must be at least 1. Received: size=", config.size));
  }
  if (config.rank < 0 || config.rank >= config.size) {
    return InvalidArgument(StrCat("`rank` must be in 0 to ", config.size - 1,
                                  ". Received: rank=", config.rank));
  }
  TFR_RETURN_IF_ERROR(CheckCount("host_connections", config.host_connections,
                                 kMostConnections));
  TFR_RETURN_IF_ERROR(
      CheckCount("host_leaders", config.host_leaders, kMostLeaders));
  TFR_RETURN_IF_ERROR(CheckCount("depth", config.depth, kLargestDepth));
  TFR_RETURN_IF_ERROR(
      CheckCount("copy_threads", config.copy_threads, kMostCopyThreads));
  if (config.host_algorithm < TFR_HOSTS_AUTO ||
      config.host_algorithm > TFR_HOSTS_RING) {
    return InvalidArgument(
        StrCat("`host_algorithm` must be a tfr_host_algorithm. Received: "
               "host_algorithm=",
               config.host_algorithm));
  }
  if (config.gpu_data < TFR_GPU_AUTO || config.gpu_data > TFR_GPU_STAGED) {
    return InvalidArgument(
        StrCat("`gpu_data` must be a tfr_gpu_data. Received: gpu_data=",
               config.gpu_data));
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
  options.shared_memory = config.shared_memory != 0;
  options.links.connections = config.host_connections;
  options.links.leaders = config.host_leaders;
  options.links.algorithm = config.host_algorithm;
  options.memory.chunk_bytes = config.chunk_bytes;
  options.memory.depth = static_cast<uint64_t>(config.depth);
  options.memory.direct_bytes = config.direct_bytes;
  options.memory.copy_threads = config.copy_threads;
  if (config.spin_us >= 0) {
    options.memory.spin_ns = config.spin_us * int64_t{1000};
  }
  return options;
}

GpuOptions GpuOptionsOf(const tfr_config& config) {
  GpuOptions options;
  options.cudart_library = TextOf(config.cudart_library);
  options.nccl_library = TextOf(config.nccl_library);
  options.data = config.gpu_data;
  options.hosts_by_tcp = config.gpu_hosts_by_tcp != 0;
  options.start_timeout_s = config.start_timeout_s;
  options.fail_after_s = config.fail_after_s;
  if (config.chunk_bytes > 0) options.piece_bytes = config.chunk_bytes;
  return options;
}

// How long a shutdown lets agreed collectives finish.
constexpr double kDrainSeconds = 3.0;

Status ShutDownHere() {
  return FailedPrecondition(
      "tfring has been shut down on this rank; call tfring.init() to start "
      "again");
}

}  // namespace

Status World::Create(const tfr_config& config, std::unique_ptr<World>* out) {
  TFR_RETURN_IF_ERROR(CheckConfig(config));
  std::unique_ptr<World> world(new World());
  TFR_RETURN_IF_ERROR(world->Start(config));
  *out = std::move(world);
  return Status::Ok();
}

Status World::Start(const tfr_config& config) {
  ProcessSetOptions options;
  TFR_RETURN_IF_ERROR(
      Faults::Parse(TextOf(config.faults), config.rank, &options.faults));
  Bootstrapped parts;
  TFR_RETURN_IF_ERROR(Bootstrap(BootstrapOptionsOf(config), &parts));
  identity_ = std::move(parts.identity);
  options.plan = std::move(parts.later);
  options.group.host_algorithm = options.plan.links.algorithm;
  options.start_timeout_s = config.start_timeout_s;
  options.group.warn_after_s = config.warn_after_s;
  options.group.fail_after_s = config.fail_after_s;
  options.group.recorder = &recorder_;
  options.group.gpu = GpuOptionsOf(config);
  device_memory_ =
      std::make_unique<DeviceMemory>(options.group.gpu.cudart_library);
  world_ = std::make_shared<Membership>(
      parts.members, std::move(parts.local), std::move(parts.data),
      options.faults.Of(0), &failures_, options.group);
  if (config.size > 1) {
    control_ = std::make_unique<SideChannel>(
        &world_->members(), std::move(parts.control), &failures_);
  }
  TFR_RETURN_IF_ERROR(Membership::Start(world_, control_.get()));
  sets_ = std::make_unique<ProcessSets>(std::move(options), world_,
                                        control_.get(), &failures_);
  return control_ == nullptr ? Status::Ok() : control_->Start();
}

World::~World() {
  if (sets_ != nullptr && !left_) static_cast<void>(Leave());
  control_.reset();
  delete spare_.load(std::memory_order_acquire);
}

// All groups at once; the world's is the last that others hear of.
Status World::Leave() {
  const auto memberships = sets_->Memberships();
  for (const auto& one : memberships) one->group().Close(ShutDownHere());
  const Deadline deadline = Deadline::After(kDrainSeconds);
  if (control_ != nullptr) control_->LeaveOtherGroups();
  for (const auto& one : memberships) {
    uint64_t executed = 0;
    const Status stopped = one->group().Stop(deadline, &executed);
    if (!stopped.ok()) {
      Abort(stopped.message());  // so that nobody waits for this rank
      return stopped;
    }
    if (control_ != nullptr) control_->Leave(one->number(), executed);
  }
  left_ = true;
  return Status::Ok();
}

Status World::Take(const tfr_request& request,
                   std::shared_ptr<Membership>* membership,
                   std::unique_ptr<Operation>* operation) {
  if (request.kind == TFR_JOIN && request.process_set != 0) {
    return InvalidArgument(
        StrCat("join is for all ranks only. Received: process set ",
               request.process_set));
  }
  TFR_RETURN_IF_ERROR(sets_->Find(request.process_set, membership));
  return Operation::Create(request, (*membership)->members(), operation);
}

Status World::Submit(const tfr_request& request) {
  std::shared_ptr<Membership> membership;
  std::unique_ptr<Operation> operation;
  TFR_RETURN_IF_ERROR(Take(request, &membership, &operation));
  if (operation->done == nullptr) {
    return InvalidArgument("`done` of a request must not be null");
  }
  return membership->group().Submit(std::move(operation));
}

Status World::Run(const tfr_request& request) {
  std::shared_ptr<Membership> membership;
  std::unique_ptr<Operation> operation(
      spare_.exchange(nullptr, std::memory_order_acquire));
  TFR_RETURN_IF_ERROR(Take(request, &membership, &operation));
  const Status status = membership->group().Run(&operation);
  if (operation != nullptr) {
    operation.reset(
        spare_.exchange(operation.release(), std::memory_order_acq_rel));
  }
  return status;
}

void World::Abort(const std::string& text) {
  const std::string full =
      StrCat("rank ", world_->members().rank, " failed: ", text);
  if (control_ != nullptr) {
    control_->Abort(full);
  } else {
    failures_.Abort(Unavailable(full));
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
  *stats = {};
  sets_->AddStats(stats);
  stats->control_messages = control_ == nullptr ? 0 : control_->messages_sent();
}

void World::Waits(uint64_t* ns) const {
  std::fill_n(ns, identity_.size, uint64_t{0});
  sets_->AddWaits(ns);
}

void World::AfterFork() {
  if (control_ != nullptr) control_->CloseAll();
  sets_->CloseAll();
}

}  // namespace tfring
