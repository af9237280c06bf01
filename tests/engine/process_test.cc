// Ranks as processes: what threads cannot show. A killed rank, repeated jobs,
// forked children, and what is left behind.
#include <sys/mman.h>
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

// Exit code 0 only if the survivor's error has `text`, and in time.
int Survive(int rank, const JobOptions& options, const std::string& store,
            const std::string& text) {
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
  EXPECT_CONTAINS(std::string(error.text), text);
  if (std::strstr(error.text, text.c_str()) == nullptr) return 12;
  if (heard - begin > kSoonNs) return 13;
  if (left - heard > kSoonNs) return 14;
  return 0;
}

struct LossCase {
  const char* name;
  std::vector<std::string> hosts;
  const char* fault;
  const char* text;
};

const LossCase& CaseOf(const std::vector<LossCase>& cases,
                       const std::string& name) {
  for (const LossCase& c : cases) {
    if (name == c.name) return c;
  }
  std::abort();
}

JobOptions OptionsOf(const LossCase& c) {
  JobOptions options = Options();
  options.size = static_cast<int>(c.hosts.size());
  options.hosts = c.hosts;
  options.faults = c.fault;
  return options;
}

const std::vector<LossCase>& KillCases() {
  static const std::vector<LossCase> cases = {
      {"one host",
       {"a", "a", "a"},
       "rank=1 collective=2 chunk=20 do=kill",
       "rank 1 (host a) is gone"},
      {"before it",
       {"a", "a", "a"},
       "rank=1 collective=2 do=kill",
       "rank 1 (host a) is gone"},
      {"hosts",
       {"a", "b", "a"},
       "rank=1 collective=2 chunk=5 do=kill",
       "rank 1 (host b) is gone"},
      {"alone on hosts",
       {"a", "b", "c"},
       "rank=1 collective=2 chunk=20 do=kill",
       "rank 1 (host b) is gone"},
      {"rank 0",
       {"a", "b", "c"},
       "rank=0 collective=2 chunk=9 do=kill",
       "rank 0 (host a) is gone"}};
  return cases;
}

ROLE(survivor) {
  const LossCase& c = CaseOf(KillCases(), argument);
  return Survive(rank, OptionsOf(c), store, c.text);
}

TEST(KilledInTheMiddleOfACollective) {
  for (const LossCase& c : KillCases()) {
    CASE(c.name);
    const std::vector<int> statuses = RunProcesses(3, "survivor", c.name);
    const int killed = c.fault[5] - '0';
    for (int rank = 0; rank < 3; ++rank) {
      const int status = statuses[static_cast<size_t>(rank)];
      if (rank == killed) {
        EXPECT_TRUE(WIFSIGNALED(status));
      } else {
        EXPECT_EQ(status, 0);
      }
    }
    if (check::CurrentFailures().hung()) return;
  }
}

const std::vector<LossCase>& StopCases() {
  static const std::vector<LossCase> cases = {
      {"one host",
       {"a", "a"},
       "rank=1 collective=1 chunk=3 do=stop",
       "for 2 s, the limit; rank 1 (host a) does not answer"},
      {"another host",
       {"a", "b"},
       "rank=1 collective=1 chunk=3 do=stop",
       "for 2 s, the limit; rank 1 (host b) does not answer"},
      // ... whose first rank waits for it, too.
      {"second of another host",
       {"a", "a", "b", "b"},
       "rank=3 collective=1 chunk=3 do=stop",
       "for 2 s, the limit; rank 3 (host b) does not answer"},
      // Nobody is left to ask who answers.
      {"rank 0",
       {"a", "b"},
       "rank=0 collective=1 chunk=3 do=stop",
       "rank 0 (host a) for 2 s, the limit"}};
  return cases;
}

// What this process says from now on to its end.
class Said {
 public:
  Said() : fd_(memfd_create("said", MFD_CLOEXEC)) { dup2(fd_, STDERR_FILENO); }
  std::string Text() const {
    std::string text(static_cast<size_t>(lseek(fd_, 0, SEEK_END)), '\0');
    const ssize_t got = pread(fd_, text.data(), text.size(), 0);
    return text.substr(0, got > 0 ? static_cast<size_t>(got) : 0);
  }

 private:
  int fd_;
};

ROLE(peer_of_a_stopped_rank) {
  const LossCase& c = CaseOf(StopCases(), argument);
  JobOptions options = OptionsOf(c);
  options.warn_after_s = 0.25;
  options.fail_after_s = 2;
  const Said said;
  const int outcome = Survive(rank, options, store, c.text);
  if (outcome != 0) return outcome;
  // Rank 0 warns.
  const bool warns = said.Text().find("for 0.25 s; rank ") != std::string::npos;
  return warns == (rank == 0) ? 0 : 15;
}

TEST(StoppedPeerIsAnErrorAfterTheLimit) {
  for (const LossCase& c : StopCases()) {
    CASE(c.name);
    Processes ranks(static_cast<int>(c.hosts.size()), "peer_of_a_stopped_rank",
                    c.name);
    const int stopped = c.fault[5] - '0';
    for (int rank = 0; rank < static_cast<int>(c.hosts.size()); ++rank) {
      if (rank != stopped) EXPECT_EQ(ranks.Wait(rank), 0);
    }
    if (check::CurrentFailures().hung()) return;
  }
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
