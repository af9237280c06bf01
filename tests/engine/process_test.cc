// Ranks as processes: what threads cannot show. A killed rank, repeated jobs,
// forked children, and what is left behind.
#include <dirent.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>

#include "custom_ops/core/common/clock.h"
#include "job.h"

namespace tfring_test {
namespace {

// Runs `body(rank, store address)` in a process per rank; returns the wait
// statuses. `body` returns the exit code.
std::vector<int> RunProcesses(
    int size, const std::function<int(int, const std::string&)>& body) {
  tfr_store_server* server = nullptr;
  int32_t port = 0;
  EXPECT_EQ(tfr_store_serve("127.0.0.1", 0, "secret of the test", &server,
                            &port, nullptr),
            TFR_OK);
  const std::string store = "127.0.0.1:" + std::to_string(port);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) _exit(body(rank, store));
    children.push_back(child);
  }
  std::vector<int> statuses;
  for (const pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    statuses.push_back(status);
  }
  tfr_store_server_close(server);
  return statuses;
}

int CountEntries(const char* path) {
  int count = 0;
  DIR* folder = opendir(path);
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

int OpenDescriptors() { return CountEntries("/proc/self/fd"); }

int Threads() { return CountEntries("/proc/self/task"); }

// Exit code 0 only if the survivor hears of rank 1's death in time.
int SurviveRank1(int rank, const JobOptions& options,
                 const std::string& store) {
  const tfr_config config = ConfigOf(options, rank, store);
  tfr_world* world = nullptr;
  if (tfr_world_create(&config, &world, nullptr) != TFR_OK) return 10;
  std::vector<float> data(size_t{16} << 20, 1.0f);
  Call call;
  call.tensors = {{{int64_t{16} << 20}, TFR_FLOAT32, data.data(), data.data()}};
  tfr_error error = {};
  int64_t begin = 0;
  for (int i = 0; i < 5; ++i) {
    begin = tfring::NowNs();
    if (call.Run(world, &error) != TFR_OK) break;
  }
  const int64_t heard = tfring::NowNs();
  tfr_world_shutdown(world);
  const int64_t left = tfring::NowNs();
  if (error.code != TFR_UNAVAILABLE) return 11;
  if (std::strstr(error.text, "rank 1") == nullptr) return 12;
  if (heard - begin > int64_t{5} * 1000000000) return 13;
  if (left - heard > int64_t{5} * 1000000000) return 14;
  return 0;
}

TEST(KilledInTheMiddleOfACollective) {
  struct Case {
    const char* name;
    std::vector<std::string> hosts;
    const char* fault;
  };
  for (const Case& c : std::vector<Case>{
           {"one host",
            {"a", "a", "a"},
            "rank=1 collective=2 chunk=20 do=kill"},
           {"before it", {"a", "a", "a"}, "rank=1 collective=2 do=kill"},
           {"hosts", {"a", "b", "a"}, "rank=1 collective=2 chunk=5 do=kill"}}) {
    CASE(c.name);
    JobOptions options;
    options.size = 3;
    options.hosts = c.hosts;
    options.faults = c.fault;
    const std::vector<int> statuses =
        RunProcesses(3, [&](int rank, const std::string& store) {
          return SurviveRank1(rank, options, store);
        });
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(WEXITSTATUS(statuses[0]), 0);
    EXPECT_EQ(WEXITSTATUS(statuses[2]), 0);
  }
}

TEST(StoppedPeerIsAnErrorAfterTheLimit) {
  JobOptions options;
  options.faults = "rank=1 collective=1 chunk=3 do=stop";
  options.fail_after_s = 1;
  const std::vector<int> statuses =
      RunProcesses(2, [&](int rank, const std::string& store) {
        if (rank == 1) {
          // Frozen by the fault; its parent's end of the job kills it.
          const pid_t watcher = getpid();
          const pid_t helper = fork();
          if (helper == 0) {
            std::this_thread::sleep_for(std::chrono::seconds(6));
            kill(watcher, SIGKILL);
            _exit(0);
          }
        }
        return SurviveRank1(rank, options, store);
      });
  EXPECT_EQ(WEXITSTATUS(statuses[0]), 0);
}

TEST(FiveCyclesLeaveNothingBehind) {
  const std::vector<int> statuses =
      RunProcesses(2, [](int rank, const std::string& store) {
        JobOptions options;
        tfr_config config = ConfigOf(options, rank, store);
        int descriptors = 0;
        int threads = 0;
        for (int cycle = 0; cycle < 5; ++cycle) {
          const std::string session = "cycle" + std::to_string(cycle);
          config.session = session.c_str();
          tfr_world* world = nullptr;
          if (tfr_world_create(&config, &world, nullptr) != TFR_OK) return 10;
          float value = static_cast<float>(rank + 1);
          Call call;
          call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
          if (call.Run(world) != TFR_OK || value != 3.0f) return 11;
          tfr_world_shutdown(world);
          if (cycle == 0) {
            descriptors = OpenDescriptors();
            threads = Threads();
          }
        }
        if (OpenDescriptors() != descriptors) return 12;
        return Threads() == threads ? 0 : 13;
      });
  for (const int status : statuses) EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(IdleCostsNothing) {
  const std::vector<int> statuses =
      RunProcesses(2, [](int rank, const std::string& store) {
        JobOptions options;
        const tfr_config config = ConfigOf(options, rank, store);
        tfr_world* world = nullptr;
        if (tfr_world_create(&config, &world, nullptr) != TFR_OK) return 10;
        rusage before = {};
        rusage after = {};
        getrusage(RUSAGE_SELF, &before);
        std::this_thread::sleep_for(std::chrono::seconds(2));
        getrusage(RUSAGE_SELF, &after);
        tfr_world_shutdown(world);
        const auto us = [](const rusage& u) {
          return (u.ru_utime.tv_sec + u.ru_stime.tv_sec) * 1000000 +
                 u.ru_utime.tv_usec + u.ru_stime.tv_usec;
        };
        return us(after) - us(before) < 40000 ? 0 : 11;
      });
  for (const int status : statuses) EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(ForkedChildDoesNotDisturbTheJob) {
  const std::vector<int> statuses =
      RunProcesses(2, [](int rank, const std::string& store) {
        JobOptions options;
        const tfr_config config = ConfigOf(options, rank, store);
        tfr_world* world = nullptr;
        if (tfr_world_create(&config, &world, nullptr) != TFR_OK) return 10;
        const pid_t child = fork();
        if (child == 0) {
          tfr_world_after_fork(world);
          _exit(0);
        }
        waitpid(child, nullptr, 0);
        float value = static_cast<float>(rank + 1);
        Call call;
        call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
        if (call.Run(world) != TFR_OK || value != 3.0f) return 11;
        tfr_world_shutdown(world);
        return 0;
      });
  for (const int status : statuses) EXPECT_EQ(WEXITSTATUS(status), 0);
}

}  // namespace
}  // namespace tfring_test
