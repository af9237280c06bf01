// One job seen from one rank: everything that lives from init to shutdown.
#ifndef TFRING_CORE_WORLD_H_
#define TFRING_CORE_WORLD_H_

#include <memory>

#include "custom_ops/core/common/status.h"
#include "custom_ops/core/rendezvous/bootstrap.h"
#include "custom_ops/core/schedule/control.h"
#include "custom_ops/core/schedule/failure.h"
#include "custom_ops/core/schedule/faults.h"
#include "custom_ops/core/schedule/group.h"
#include "custom_ops/core/tfring.h"
#include "custom_ops/core/transport/mesh.h"

namespace tfring {

class World {
 public:
  static Status Create(const tfr_config& config, std::unique_ptr<World>* out);
  // Leaves in good order, unless the world has failed already.
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  Status Submit(const tfr_request& request);
  Status Run(const tfr_request& request);
  void Abort(const std::string& text);
  void Info(tfr_info* info) const;
  void Hosts(int32_t* hosts) const;
  void Stats(tfr_stats* stats) const;
  void AfterFork();

 private:
  World() = default;
  Status Start(const tfr_config& config);

  GroupMembers identity_;
  GroupMembers members_;
  Failure failure_;
  Faults faults_;
  std::unique_ptr<LocalGroup> local_;
  std::unique_ptr<Mesh> mesh_;
  std::unique_ptr<Control> control_;
  std::unique_ptr<Group> group_;
};

}  // namespace tfring

#endif  // TFRING_CORE_WORLD_H_
