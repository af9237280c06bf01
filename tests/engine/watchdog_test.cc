// A test that hangs must say where, and leave nothing behind.
#include "watchdog.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <future>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>

#include "custom_ops/core/common/thread.h"
#include "processes.h"

namespace tfring_test {
namespace {

// Not inlined, so that a backtrace shows them.
__attribute__((noinline)) void HangsInTheMainThread() {
  poll(nullptr, 0, -1);
  std::abort();
}

__attribute__((noinline)) void HangsInAnEngineThread(std::mutex* mutex) {
  mutex->lock();
  mutex->unlock();
}

// A file without a name, by a path that child processes can open.
class CapturedOutput {
 public:
  CapturedOutput()
      : fd_(memfd_create("output", MFD_CLOEXEC)),
        path_(check::Join("/proc/", getpid(), "/fd/", fd_)) {}
  ~CapturedOutput() { close(fd_); }
  CapturedOutput(const CapturedOutput&) = delete;
  CapturedOutput& operator=(const CapturedOutput&) = delete;

  const std::string& path() const { return path_; }
  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

 private:
  const int fd_;
  const std::string path_;
};

void CaptureStandardError(const std::string& path) {
  const int fd = open(path.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  dup2(fd, STDERR_FILENO);
  close(fd);
}

// Never ends by itself. Calls `ready` once the other thread runs.
void Hang(const std::function<void()>& ready) {
  std::mutex mutex;
  mutex.lock();
  std::promise<void> runs;
  std::thread engine = tfring::StartThread("hung-thread", [&] {
    runs.set_value();
    HangsInAnEngineThread(&mutex);
  });
  runs.get_future().wait();
  ready();
  HangsInTheMainThread();
  engine.join();
}

ROLE(hangs) {
  CaptureStandardError(argument);
  Hang([] { check::StartWatchdog(1); });
  return 0;
}

ROLE(waits_for_a_child) {
  CaptureStandardError(argument);
  Processes grandchildren(1, "hangs_longer", argument);
  grandchildren.WaitUntilStopped(0);
  kill(grandchildren.pid(0), SIGCONT);
  check::StartWatchdog(1);
  return grandchildren.Wait(0);
}

ROLE(hangs_longer) {
  CaptureStandardError(argument);
  Hang([] { raise(SIGSTOP); });
  return 0;
}

// Runs a role that hangs; returns what it wrote.
std::string OutputOfHung(const std::string& role) {
  const CapturedOutput output;
  const int status = RunProcesses(1, role, output.path())[0];
  EXPECT_EQ(WEXITSTATUS(status), check::kWatchdogExit);
  EXPECT_TRUE(check::CurrentFailures().hung());
  check::CurrentFailures().SetHung(false);  // as it should
  return output.Text();
}

TEST(ShowsEveryThreadOfAHungProcess) {
  const std::string text = OutputOfHung("hangs");
  for (const char* part :
       {"WATCHDOG: rank 0 in the role hangs", "is not done after 1 s",
        "HangsInTheMainThread", "hung-thread", "HangsInAnEngineThread"}) {
    EXPECT_CONTAINS(text, part);
  }
}

TEST(ShowsAndEndsTheChildrenOfAHungProcess) {
  const std::string text = OutputOfHung("waits_for_a_child");
  const size_t child = text.find("WATCHDOG: child process");
  ASSERT_TRUE(child != std::string::npos);
  EXPECT_CONTAINS(text.substr(child), "hung-thread");
  EXPECT_CONTAINS(text.substr(child), "HangsInTheMainThread");
}

ROLE(looks_at_signals) {
  sigset_t blocked;
  sigprocmask(SIG_SETMASK, nullptr, &blocked);
  for (int number = 1; number < SIGRTMIN; ++number) {
    if (sigismember(&blocked, number) == 1) return number;
    struct sigaction action;
    sigaction(number, nullptr, &action);
    if (action.sa_handler == SIG_IGN) return 100 + number;
  }
  return 0;
}

TEST(SignalsAreAsUsualWhateverTheParentDid) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &before);
  signal(SIGHUP, SIG_IGN);
  EXPECT_EQ(RunProcesses(1, "looks_at_signals")[0], 0);
  signal(SIGHUP, SIG_DFL);
  sigprocmask(SIG_SETMASK, &before, nullptr);
}

}  // namespace
}  // namespace tfring_test
