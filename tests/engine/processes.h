// A job whose ranks are processes, each a fresh run of the test program itself:
//
//   ROLE(survivor) { return argument == "one host" ? 0 : 1; }
//
// is what a rank does; a test starts it by name. Forking the ranks instead
// would leave each with the locks that other threads held at that moment.
#ifndef TFRING_TESTS_ENGINE_PROCESSES_H_
#define TFRING_TESTS_ENGINE_PROCESSES_H_

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>
#include <vector>

#include "check.h"
#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/tfring.h"
#include "job.h"

namespace tfring_test {

class Processes {
 public:
  // Longer than a child gives itself, which says where it hangs.
  static constexpr double kWaitSeconds = check::kChildSeconds + 15;
  static constexpr double kDumpSeconds = 25;

  Processes(int size, const std::string& role, const std::string& argument) {
    check::RestartWatchdog();
    tfr_error error = {};
    EXPECT_EQ(tfr_store_serve("127.0.0.1", 0, "secret of the test", &server_,
                              &port_, &error),
              TFR_OK);
    const std::string store = "127.0.0.1:" + std::to_string(port_);
    for (int rank = 0; rank < size; ++rank) {
      Spawn({"--role", role, std::to_string(rank), store, argument,
             std::to_string(getpid())});
    }
  }
  ~Processes() {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      if (check::Watchdog().children[rank] == 0) continue;
      Kill(static_cast<int>(rank));
      Wait(static_cast<int>(rank));
    }
    tfr_store_server_close(server_);
  }
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;

  // The wait status of a rank that has ended. One that does not is made to say
  // where it is, killed, and a failure of the test.
  int Wait(int rank) {
    int status = 0;
    if (!Ended(rank, kWaitSeconds, &status)) {
      kill(pid(rank), SIGALRM);
      if (!Ended(rank, kDumpSeconds, &status)) {
        check::SayThreads(check::Symbols(), pid(rank));
        Kill(rank);
        Ended(rank, kDumpSeconds, &status);
      }
      EXPECT_EQ("rank " + std::to_string(rank), "ended in time");
      check::CurrentFailures().SetHung(true);
    } else if (WIFEXITED(status) &&
               WEXITSTATUS(status) == check::kWatchdogExit) {
      check::CurrentFailures().SetHung(true);
    }
    return status;
  }
  std::vector<int> WaitForAll() {
    std::vector<int> statuses;
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      statuses.push_back(Wait(static_cast<int>(rank)));
    }
    return statuses;
  }
  // Until the rank has raised SIGSTOP; the watchdog limits it.
  void WaitUntilStopped(int rank) {
    siginfo_t info = {};
    EXPECT_EQ(waitid(P_PID, static_cast<id_t>(pid(rank)), &info,
                     WSTOPPED | WEXITED | WNOWAIT),
              0);
    EXPECT_EQ(info.si_code, static_cast<int>(CLD_STOPPED));
  }
  void Kill(int rank) { kill(pid(rank), SIGKILL); }
  pid_t pid(int rank) const { return children_[static_cast<size_t>(rank)]; }

 private:
  void Spawn(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), "/proc/self/exe");
    std::vector<char*> argv;
    for (std::string& one : arguments) argv.push_back(one.data());
    argv.push_back(nullptr);
    pid_t child = 0;
    if (posix_spawn(&child, argv[0], nullptr, nullptr, argv.data(), environ) !=
            0 ||
        children_.size() == check::kMostChildren) {
      std::abort();
    }
    check::Watchdog().children[children_.size()] = child;
    children_.push_back(child);
  }

  bool Ended(int rank, double seconds, int* status) {
    const auto deadline = tfring::Deadline::After(seconds);
    do {
      const pid_t ended = waitpid(pid(rank), status, WNOHANG);
      if (ended != 0) {
        EXPECT_EQ(ended, pid(rank));
        check::Watchdog().children[rank] = 0;
        return true;
      }
      usleep(2000);
    } while (!deadline.expired());
    return false;
  }

  tfr_store_server* server_ = nullptr;
  int32_t port_ = 0;
  std::vector<pid_t> children_;
};

// Runs a role in a process per rank; returns their wait statuses.
inline std::vector<int> RunProcesses(int size, const std::string& role,
                                     const std::string& argument = "") {
  return Processes(size, role, argument).WaitForAll();
}

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_PROCESSES_H_
