// One job seen from one rank: everything that lives from init to shutdown.
#ifndef TFRING_CORE_WORLD_H_
#define TFRING_CORE_WORLD_H_

#include <atomic>
#include <memory>
#include <string>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/nccl/device_memory.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/schedule/membership.h"
#include "custom_ops/core/schedule/process_sets.h"
#include "custom_ops/core/schedule/recorder.h"
#include "custom_ops/core/schedule/side_channel.h"
#include "custom_ops/core/tfring.h"

namespace tfring {

class World {
 public:
  static Status Create(const tfr_config& config, std::unique_ptr<World>* out);
  // Leaves in good order, unless the world has failed already.
  ~World();
  // The same before the destructor does it. UNAVAILABLE if a thread is stuck
  // that still uses the world: then it must stay, for the life of the process.
  Status Leave();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Status Submit(const tfr_request& request);
  Status Run(const tfr_request& request);
  void Abort(const std::string& text);
  void Info(tfr_info* info) const;
  void Hosts(int32_t* hosts) const;
  void Stats(tfr_stats* stats) const;
  void Waits(uint64_t* ns) const;
  Recorder& recorder() { return recorder_; }
  ProcessSets& process_sets() const { return *sets_; }
  DeviceMemory& device_memory() const { return *device_memory_; }
  void AfterFork();

 private:
  World() = default;
  Status Start(const tfr_config& config);
  // The group that a request is for, and a checked copy of it.
  Status Take(const tfr_request& request,
              std::shared_ptr<Membership>* membership,
              std::unique_ptr<Operation>* operation);

  Recorder recorder_;
  GroupMembers identity_;
  Failures failures_;
  std::shared_ptr<Membership> world_;  // the group of all ranks
  std::unique_ptr<SideChannel> control_;
  std::unique_ptr<ProcessSets> sets_;
  std::unique_ptr<DeviceMemory> device_memory_;
  bool left_ = false;
  // One that was run, to be used again: saves small collectives the memory
  // allocator. Null while somebody uses it.
  std::atomic<Operation*> spare_{nullptr};
};

}  // namespace tfring

#endif  // TFRING_CORE_WORLD_H_
