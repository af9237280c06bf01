// How the ranks of a job find each other.
//
//   1  every rank puts a card into the store: its host, where it listens
//   2  from all cards each rank computes the same picture: hosts, leaders
//   3  the first rank of each host creates the host's memory, the others open
//      it; every rank connects to rank 0 (side channel), every leader to every
//      other leader (data)
//   4  all wait until all are done; from here on the store is not needed
#ifndef TFRING_CORE_RENDEZVOUS_BOOTSTRAP_H_
#define TFRING_CORE_RENDEZVOUS_BOOTSTRAP_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "custom_ops/core/common/members.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/rendezvous/group_memory.h"
#include "custom_ops/core/transport/local_group.h"
#include "custom_ops/core/transport/mesh.h"
#include "custom_ops/core/transport/socket.h"

namespace tfring {

// Between two hosts.
constexpr int32_t kMostConnections = 64;
// Of a host.
constexpr int32_t kMostLeaders = 64;

struct LinkOptions {
  int32_t connections = 0;  // per pair of hosts; 0 = chosen
  int32_t leaders = 0;      // of each host, at most; 0 = chosen
  int32_t algorithm = 0;    // tfr_host_algorithm
};

struct BootstrapOptions {
  int rank = 0;
  int size = 1;
  std::string host;  // "" = this machine's name
  std::string store;
  std::string secret;
  std::string session;
  std::string interfaces;
  double start_timeout_s = 30;
  bool shared_memory = true;  // rank 0's word counts for all
  MemoryOptions memory;       // rank 0's chunk_bytes count for all
  LinkOptions links;          // rank 0's word counts for all
};

// What the ranks must know of each other to form further groups of some of
// them, without the store.
struct MeetingPlan {
  std::string secret;
  uint64_t session = 0;
  std::vector<std::vector<std::string>> hosts;  // numeric, of each rank
  MemoryOptions memory;
  LinkOptions links;  // with nothing left to choose
};

struct Bootstrapped {
  // By host name: what users see as local and cross ranks.
  GroupMembers identity;
  // By shared memory: what the data plane uses. Equal to `identity` unless
  // shared memory is off, when every rank counts as a host.
  GroupMembers members;
  std::unique_ptr<LocalGroup> local;
  std::vector<Socket> control;    // see SideChannel
  std::vector<HostSockets> data;  // see Mesh; empty unless it exchanges
  MeetingPlan later;
};

// Connections from one leader to another.
size_t LanesOf(const GroupMembers& members, const LinkOptions& links);

// UNAVAILABLE or DEADLINE_EXCEEDED names the ranks that did not come.
Status Bootstrap(const BootstrapOptions& options, Bootstrapped* out);

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_BOOTSTRAP_H_
