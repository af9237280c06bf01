// How H hosts reduce and spread a vector: plans, without any data.
//
// The vector has H parts. A plan first reduces: host h ends with part h, added
// up over all hosts. Then it spreads: every host ends with all parts. Each
// phase costs every host (H-1)/H of the vector's bytes, whatever the algorithm;
// they differ in steps, and in how many hosts talk to one at the same time.
//
// Direct: each part goes straight to its owner, then from there to all. One
// step a phase; H-1 messages in it.
//
// Halving-doubling, for any number of hosts (J. L. Traeff, arXiv:2410.14234):
// distances H > d1 > d2 > ... > 1, each half of the one before, rounded up. In
// a step of distance d after d', host h sends the parts of hosts h+d to h+d'-1
// to host h+d, which adds them to its own. Spreading goes the same way back.
// ceil(log2 H) steps a phase, one message in each.
//
// Ring: host h sends to h+1 only, a part a step. H-1 steps a phase; each host
// hears from one host all the time, so nothing competes for a link.
//
// The owner of a part decides its bits and all get these, so every host has the
// same. Direct adds in host order; the others in an order of their own, which
// depends on the number of hosts only.
#ifndef TFRING_CORE_COLLECTIVES_HOST_ALGORITHM_H_
#define TFRING_CORE_COLLECTIVES_HOST_ALGORITHM_H_

#include <cstdint>
#include <vector>

namespace tfring {

enum class HostAlgorithm { kDirect, kHalvingDoubling, kRing };

// "direct", "halving_doubling" or "ring".
const char* HostAlgorithmName(HostAlgorithm algorithm);

// Which algorithm takes the least time for a vector of `bytes` bytes, all
// chunks together. Every host comes to the same answer.
HostAlgorithm ChooseHostAlgorithm(uint64_t bytes, int hosts);

// Parts that travel together, in one message.
struct HostMove {
  int peer;   // the other host
  int first;  // parts first, first + 1, ..., modulo the number of hosts
  int count;
};

// One step of one host. Its sends may hold what came in earlier steps, never
// what comes in the same one.
struct HostStep {
  std::vector<HostMove> sends;
  std::vector<HostMove> receives;
  // Received parts are added to what this host holds of them, in the order of
  // the hosts they come from with the own in its place; else stored.
  bool reduces;
};

using HostPlan = std::vector<HostStep>;

// The steps of host `host` of `hosts`, which may be any number.
HostPlan PlanReduce(HostAlgorithm algorithm, int host, int hosts);
HostPlan PlanSpread(HostAlgorithm algorithm, int host, int hosts);
// Both in turn.
HostPlan PlanAllreduce(HostAlgorithm algorithm, int host, int hosts);

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_HOST_ALGORITHM_H_
