// Which ranks share a host.
#ifndef TFRING_CORE_RENDEZVOUS_IDENTITY_H_
#define TFRING_CORE_RENDEZVOUS_IDENTITY_H_

#include <string>
#include <vector>

#include "custom_ops/core/common/members.h"

namespace tfring {

// Ranks with equal keys can share memory: the name given (or the machine's),
// the running kernel, and the process namespace, so that two machines of one
// name or two containers on one machine are never mistaken for one host.
std::string HostKey(const std::string& name);
std::string MachineName();

// The picture that rank `rank` has of the job. Hosts are numbered in the order
// of their lowest rank. `keys[r]` and `names[r]` are rank r's.
GroupMembers MembersOf(int rank, const std::vector<std::string>& keys,
                       const std::vector<std::string>& names);

}  // namespace tfring

#endif  // TFRING_CORE_RENDEZVOUS_IDENTITY_H_
