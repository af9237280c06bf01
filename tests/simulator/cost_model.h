// What things cost in the simulated job. Hosts are alike; each has one link to
// a network that carries all links at full speed at the same time.
#ifndef TFRING_TESTS_SIMULATOR_COST_MODEL_H_
#define TFRING_TESTS_SIMULATOR_COST_MODEL_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "event_clock.h"

namespace simulator {

struct CostModel {
  int hosts = 1;
  int ranks_per_host = 1;
  int leaders = 0;  // of each host; 0: as many as the engine takes

  // The network.
  double link_gbit = 100;  // of each host, each way
  double payload_share =
      0.94;                // of the link, after headers: 1448 of 1538 bytes
  double latency_us = 15;  // from a host's send to the other's receive
  double message_us = 4;   // processor time of a data message, each end

  // Control messages: a thread on rank 0 handles them one after another.
  double control_send_us = 4;
  double control_handle_us = 4;
  double announce_us = 0.3;  // in the agreement of a host
  double wake_us = 5;        // from the log to a rank that runs

  // Inside a host, in bytes per nanosecond.
  double rank_memory = 10;   // what one rank reads and writes
  double host_memory = 200;  // what all its ranks read and write together
  double socket_rate = 4;    // what one thread moves into or out of sockets
  // Sums of 16-bit tensors travel as float32 until they are complete: 2.
  double partial_growth = 1;

  // The engine's staging (rendezvous/group_memory.cc).
  uint64_t chunk_bytes = 256 << 10;
  uint64_t chunks_under_way = 0;  // 0: as many as the engine has room for

  int leaders_of_host() const {
    return leaders > 0 ? leaders : std::min(ranks_per_host, 8);
  }
  uint64_t room() const {
    if (chunks_under_way > 0) return chunks_under_way;
    return 3 +
           std::max<uint64_t>(5, 3 * static_cast<uint64_t>(leaders_of_host()));
  }
  int ranks() const { return hosts * ranks_per_host; }
  int host_of(int rank) const { return rank / ranks_per_host; }

  static Nanoseconds Ns(double us) {
    return static_cast<Nanoseconds>(std::llround(us * 1e3));
  }
  // On a link.
  Nanoseconds WireNs(uint64_t bytes) const {
    const double bytes_per_ns = link_gbit * payload_share / 8;
    return static_cast<Nanoseconds>(static_cast<double>(bytes) / bytes_per_ns);
  }
  // For each rank of a host at the same time.
  Nanoseconds MemoryNs(double bytes) const {
    const double rate = std::min(rank_memory, host_memory / ranks_per_host);
    return static_cast<Nanoseconds>(bytes / rate);
  }
};

}  // namespace simulator

#endif  // TFRING_TESTS_SIMULATOR_COST_MODEL_H_
