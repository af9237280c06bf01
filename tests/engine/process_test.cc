// Ranks as processes: what threads cannot show. A killed rank, repeated jobs,
// forked children, and what is left behind.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <optional>
#include <thread>

#include "custom_ops/core/common/clock.h"
#include "processes.h"
#include "resources.h"

namespace tfring_test {
namespace {

// Every wait of the engine ends sooner than the watchdog of a rank strikes, and
// later than a rank, on a busy machine, hears of a death.
constexpr double kFailAfterS = 30;
constexpr int64_t kSoonNs = int64_t{15} * 1000000000;

JobOptions Options() {
  JobOptions options;
  options.fail_after_s = kFailAfterS;
  return options;
}

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
  if (heard - begin > kSoonNs) return 13;
  if (left - heard > kSoonNs) return 14;
  return 0;
}

struct KillCase {
  const char* name;
  std::vector<std::string> hosts;
  const char* fault;
};

const std::vector<KillCase>& KillCases() {
  static const std::vector<KillCase> cases = {
      {"one host", {"a", "a", "a"}, "rank=1 collective=2 chunk=20 do=kill"},
      {"before it", {"a", "a", "a"}, "rank=1 collective=2 do=kill"},
      {"hosts", {"a", "b", "a"}, "rank=1 collective=2 chunk=5 do=kill"},
  };
  return cases;
}

ROLE(survivor) {
  JobOptions options = Options();
  options.size = 3;
  for (const KillCase& c : KillCases()) {
    if (argument != c.name) continue;
    options.hosts = c.hosts;
    options.faults = c.fault;
  }
  return SurviveRank1(rank, options, store);
}

TEST(KilledInTheMiddleOfACollective) {
  for (const KillCase& c : KillCases()) {
    CASE(c.name);
    const std::vector<int> statuses = RunProcesses(3, "survivor", c.name);
    EXPECT_TRUE(WIFSIGNALED(statuses[1]));
    EXPECT_EQ(statuses[0], 0);
    EXPECT_EQ(statuses[2], 0);
    if (check::CurrentFailures().hung()) return;
  }
}

ROLE(peer_of_a_stopped_rank) {
  JobOptions options;
  options.faults = "rank=1 collective=1 chunk=3 do=stop";
  options.fail_after_s = 1;
  return SurviveRank1(rank, options, store);
}

TEST(StoppedPeerIsAnErrorAfterTheLimit) {
  Processes ranks(2, "peer_of_a_stopped_rank", "");
  EXPECT_EQ(ranks.Wait(0), 0);
}

ROLE(five_cycles) {
  const JobOptions options = Options();
  tfr_config config = ConfigOf(options, rank, store);
  std::optional<Resources> after_first;
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
    if (cycle == 0) after_first.emplace();
  }
  return ComesDownTo(*after_first) ? 0 : 12;
}

TEST(FiveCyclesLeaveNothingBehind) {
  for (const int status : RunProcesses(2, "five_cycles")) EXPECT_EQ(status, 0);
}

ROLE(idler) {
  const JobOptions options = Options();
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
}

TEST(IdleCostsNothing) {
  for (const int status : RunProcesses(2, "idler")) EXPECT_EQ(status, 0);
}

ROLE(forks) {
  const JobOptions options = Options();
  const tfr_config config = ConfigOf(options, rank, store);
  tfr_world* world = nullptr;
  if (tfr_world_create(&config, &world, nullptr) != TFR_OK) return 10;
  const pid_t self = getpid();
  const pid_t child = fork();
  if (child == 0) {
    check::EndWithParent(self);
    tfr_world_after_fork(world);
    _exit(0);
  }
  int status = 1;
  waitpid(child, &status, 0);
  if (status != 0) return 12;
  float value = static_cast<float>(rank + 1);
  Call call;
  call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
  if (call.Run(world) != TFR_OK || value != 3.0f) return 11;
  tfr_world_shutdown(world);
  return 0;
}

TEST(ForkedChildDoesNotDisturbTheJob) {
  for (const int status : RunProcesses(2, "forks")) EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace tfring_test
