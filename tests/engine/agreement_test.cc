// The agreement between processes: what becomes of its lock.
#include "custom_ops/core/schedule/agreement.h"

#include <unistd.h>

#include <sstream>
#include <string>

#include "custom_ops/core/transport/shared_memory.h"
#include "processes.h"

namespace tfring_test {
namespace {

using tfring::Agreement;
using tfring::Arrival;
using tfring::SharedMemory;

// Memory that child processes can open.
class Memory {
 public:
  Memory() {
    EXPECT_OK(SharedMemory::Create(Agreement::Bytes(2), &memory_));
    Agreement(memory_.data(), 2).Initialize();
  }
  char* data() const { return memory_.data(); }
  std::string place() const { return check::Join(getpid(), " ", memory_.fd()); }

 private:
  SharedMemory memory_;
};

// Announces a collective, then meets `signal` while it holds the lock.
void LockAnd(int signal, const std::string& place) {
  int64_t pid = 0;
  int fd = -1;
  std::istringstream(place) >> pid >> fd;
  SharedMemory memory;
  EXPECT_OK(SharedMemory::Open(pid, fd, &memory));
  Agreement agreement(memory.data(), 2);
  Arrival arrival;
  EXPECT_OK(agreement.Arrive(7, 1, true, &arrival));
  pthread_mutex_lock(agreement.mutex());
  raise(signal);
}

ROLE(dies_with_the_lock) {
  LockAnd(SIGKILL, argument);
  return 0;
}

ROLE(stops_with_the_lock) {
  LockAnd(SIGSTOP, argument);
  return 0;
}

TEST(SurvivesAProcessThatDiesWithTheLock) {
  const Memory memory;
  Agreement agreement(memory.data(), 2);
  for (int i = 0; i < 2; ++i) {
    const int status = RunProcesses(1, "dies_with_the_lock", memory.place())[0];
    EXPECT_TRUE(WIFSIGNALED(status));
    Arrival arrival;
    EXPECT_OK(agreement.Arrive(7, 1, true, &arrival));
    EXPECT_TRUE(arrival.host_complete);
    EXPECT_EQ(agreement.head(), static_cast<uint64_t>(i + 1));
    EXPECT_EQ(agreement.entry(static_cast<uint64_t>(i)).uid, 7u);
  }
}

TEST(NamesAProcessThatIsStoppedWithTheLock) {
  const Memory memory;
  Agreement agreement(memory.data(), 2, /*lock_timeout_s=*/0.3);
  Processes stopped(1, "stops_with_the_lock", memory.place());
  stopped.WaitUntilStopped(0);
  Arrival arrival;
  const int64_t begin = tfring::NowNs();
  const tfring::Status status = agreement.Arrive(7, 1, true, &arrival);
  EXPECT_EQ(status.code(), TFR_UNAVAILABLE);
  EXPECT_CONTAINS(status.message(),
                  check::Join("process ", stopped.pid(0),
                              " on this host has kept the agreement of its "
                              "ranks locked for 0.3 s; is it stopped?"));
  EXPECT_LT(tfring::NowNs() - begin, int64_t{5} * 1000000000);
  EXPECT_EQ(agreement.head(), 0u);
}

}  // namespace
}  // namespace tfring_test
