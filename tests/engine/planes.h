// The data planes of a host's ranks, without a world around them, of which some
// have found that they should store past the cache (store_choice.h).
#ifndef TFRING_TESTS_ENGINE_PLANES_H_
#define TFRING_TESTS_ENGINE_PLANES_H_

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "custom_ops/core/collectives/data_plane.h"
#include "custom_ops/core/rendezvous/group_memory.h"
#include "custom_ops/core/rendezvous/identity.h"
#include "custom_ops/core/schedule/operation.h"

namespace tfring_test {

// Until the plane streams, plain stores seem to take long.
inline void MakeItStream(tfring::DataPlane* plane) {
  using tfring::Stores;
  while (plane->StoresForOthers() == Stores::kPlain) {
    plane->StoreForOthers(tfring::StoreChoice::kLeastBytes, [](Stores stores) {
      if (stores == Stores::kPlain) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
}

// Calls body(members, plane) on a thread for each of `size` ranks, of which the
// first `streaming` stream.
template <typename Body>
void RunOnPlanes(int size, int streaming, tfring::MemoryOptions options,
                 Body&& body) {
  const std::vector<std::string> hosts(static_cast<size_t>(size), "here");
  options.crowded = true;
  std::vector<std::unique_ptr<tfring::LocalGroup>> locals(hosts.size());
  tfring::MemoryPlace place;
  std::vector<tfring::GroupMembers> members;
  for (int rank = 0; rank < size; ++rank) {
    members.push_back(tfring::MembersOf(rank, hosts, hosts));
    auto* const local = &locals[static_cast<size_t>(rank)];
    ASSERT_OK(rank == 0
                  ? CreateGroupMemory(members[0], options, local, &place)
                  : OpenGroupMemory(members.back(), options, place, local));
  }
  std::vector<std::thread> threads;
  for (size_t r = 0; r < hosts.size(); ++r) {
    threads.emplace_back([&, r] {
      tfring::Failure failure;
      tfring::Faults faults;
      tfring::DataPlane plane(&members[r], locals[r].get(), nullptr, &failure,
                              &faults, 0, 20);
      if (static_cast<int>(r) < streaming) MakeItStream(&plane);
      body(members[r], &plane);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

inline std::unique_ptr<tfring::Operation> OperationOf(
    const tfr_request& request, const tfring::GroupMembers& members) {
  std::unique_ptr<tfring::Operation> operation;
  EXPECT_OK(tfring::Operation::Create(request, members, &operation));
  EXPECT_EQ(operation->fault, std::string());
  return operation;
}

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_PLANES_H_
