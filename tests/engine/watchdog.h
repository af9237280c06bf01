// When a test does not end: says where every thread is, then ends everything.
//
// Each test program, and each process that a test starts, has a deadline of its
// own (SIGALRM). What runs when it strikes uses no memory allocation and no
// lock, since the thread that it interrupts may hold any: system calls only.
#ifndef TFRING_TESTS_ENGINE_WATCHDOG_H_
#define TFRING_TESTS_ENGINE_WATCHDOG_H_

#include <elf.h>
#include <execinfo.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>

// Where the linker put this program.
extern "C" const char __executable_start;
extern "C" const char etext;

namespace check {

constexpr int kMostChildren = 16;
constexpr int kWatchdogExit = 124;

// What the watchdog of this process needs to know.
struct WatchdogState {
  const char* what = "";  // the test, or the role of a child
  char detail[128] = "";  // the case
  unsigned seconds = 0;   // of the alarm that is set
  std::atomic<pid_t> children[kMostChildren] = {};
};

inline WatchdogState& Watchdog() {
  static WatchdogState state;
  return state;
}

inline void SetWatchdogDetail(const char* text) {
  static std::mutex mutex;
  const std::lock_guard<std::mutex> lock(mutex);
  std::snprintf(Watchdog().detail, sizeof(Watchdog().detail), "%s", text);
}

// --- writing ----------------------------------------------------------------

inline void Say(const char* text, size_t size) {
  while (size > 0) {
    const ssize_t written = write(STDERR_FILENO, text, size);
    if (written <= 0) return;
    text += written;
    size -= static_cast<size_t>(written);
  }
}

template <typename... Args>
void SayLine(const char* format, Args... args) {
  char line[512];
  const int size = std::snprintf(line, sizeof(line), format, args...);
  if (size > 0)
    Say(line, std::min(static_cast<size_t>(size), sizeof(line) - 1));
}

// The first bytes of a small file, in one line; "" if it cannot be read.
inline void ReadLine(const char* path, char* out, size_t size) {
  out[0] = '\0';
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const ssize_t got = read(fd, out, size - 1);
  close(fd);
  if (got <= 0) return;
  out[got] = '\0';
  if (out[got - 1] == '\n') out[got - 1] = '\0';
  for (char* c = out; *c != '\0'; ++c) {
    if (*c == '\n') *c = ' ';
  }
}

// --- names of addresses -----------------------------------------------------

// The function of this program that holds `offset` (from its first byte), from
// its symbol table, since most functions are not exported.
class Symbols {
 public:
  Symbols() {
    const int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat info;
    if (fd < 0) return;
    if (fstat(fd, &info) == 0) {
      size_ = static_cast<size_t>(info.st_size);
      void* file = mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
      if (file != MAP_FAILED) Find(static_cast<const char*>(file));
    }
    close(fd);
  }

  const char* Name(uint64_t offset, uint64_t* into) const {
    const Elf64_Sym* best = nullptr;
    for (size_t i = 0; i < count_; ++i) {
      const Elf64_Sym& one = symbols_[i];
      if (ELF64_ST_TYPE(one.st_info) != STT_FUNC) continue;
      if (offset >= one.st_value && offset < one.st_value + one.st_size) {
        best = &one;
      }
    }
    if (best == nullptr) return nullptr;
    *into = offset - best->st_value;
    return names_ + best->st_name;
  }

 private:
  void Find(const char* file) {
    const auto* header = reinterpret_cast<const Elf64_Ehdr*>(file);
    const auto* sections =
        reinterpret_cast<const Elf64_Shdr*>(file + header->e_shoff);
    for (int i = 0; i < header->e_shnum; ++i) {
      if (sections[i].sh_type != SHT_SYMTAB) continue;
      symbols_ =
          reinterpret_cast<const Elf64_Sym*>(file + sections[i].sh_offset);
      count_ = sections[i].sh_size / sizeof(Elf64_Sym);
      names_ = file + sections[sections[i].sh_link].sh_offset;
    }
  }

  const Elf64_Sym* symbols_ = nullptr;
  const char* names_ = nullptr;
  size_t count_ = 0;
  size_t size_ = 0;
};

inline uint64_t Start() {
  return reinterpret_cast<uint64_t>(&__executable_start);
}

// One line per return address inside this program.
inline void SayAddress(const Symbols& symbols, uint64_t offset) {
  uint64_t into = 0;
  const char* name = symbols.Name(offset, &into);
  if (name != nullptr) {
    SayLine("      %s+%#llx\n", name, static_cast<unsigned long long>(into));
  }
}

inline void SayOwnStack(const Symbols& symbols) {
  void* frames[64];
  const int count = backtrace(frames, 64);
  SayLine("    this thread, from the inside out:\n");
  for (int i = 0; i < count; ++i) {
    SayAddress(symbols, reinterpret_cast<uint64_t>(frames[i]) - Start());
  }
}

// --- threads ----------------------------------------------------------------

// Where `pid`, which runs this program, has its first byte.
inline uint64_t StartOf(pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/auxv", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  Elf64_auxv_t entry = {};
  while (read(fd, &entry, sizeof(entry)) == sizeof(entry) &&
         entry.a_type != AT_PHDR) {
  }
  close(fd);
  return entry.a_un.a_val - (getauxval(AT_PHDR) - Start());
}

// A blocked thread's stack holds its return addresses, and left-overs: good
// enough to tell what it waits for.
inline void SayStackOf(const Symbols& symbols, pid_t pid, uint64_t stack) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/mem", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  const uint64_t start = StartOf(pid);
  const uint64_t size = static_cast<uint64_t>(&etext - &__executable_start);
  constexpr uint64_t kStackBytes = 32768;  // sanitizers have large frames
  uint64_t words[512];
  for (uint64_t at = 0; at < kStackBytes; at += sizeof(words)) {
    const ssize_t got =
        pread(fd, words, sizeof(words), static_cast<off_t>(stack + at));
    const ssize_t count = got / static_cast<ssize_t>(sizeof(uint64_t));
    for (ssize_t i = 0; i < count; ++i) {
      if (words[i] - start < size) SayAddress(symbols, words[i] - start);
    }
    if (got < static_cast<ssize_t>(sizeof(words))) break;
  }
  close(fd);
}

inline void SayThread(const Symbols& symbols, pid_t pid, const char* thread) {
  char path[96];
  char name[32];
  char state[256];
  char wchan[64];
  char call[256];
  char kernel[512];
  const auto read_file = [&](const char* file, char* out, size_t size) {
    std::snprintf(path, sizeof(path), "/proc/%d/task/%s/%s", pid, thread, file);
    ReadLine(path, out, size);
  };
  read_file("comm", name, sizeof(name));
  read_file("stat", state, sizeof(state));
  read_file("wchan", wchan, sizeof(wchan));
  read_file("syscall", call, sizeof(call));
  read_file("stack", kernel, sizeof(kernel));
  const char* after_name = std::strrchr(state, ')');
  const char* letter = after_name == nullptr ? " ?" : after_name + 1;
  SayLine("  thread %s %s: state%.2s, wchan %s, syscall %s\n", thread, name,
          letter, wchan, call);
  if (kernel[0] != '\0') SayLine("    kernel: %s\n", kernel);
  // "number six-arguments stack-pointer program-counter", or "running".
  const char* pointer = std::strrchr(call, ' ');
  if (pointer == nullptr || pointer == call) return;
  do {
    --pointer;
  } while (pointer > call && *pointer != ' ');
  SayStackOf(symbols, pid, std::strtoull(pointer, nullptr, 16));
}

struct DirectoryEntry {  // of getdents64(2)
  uint64_t inode;
  int64_t offset;
  uint16_t size;
  uint8_t type;
  char name[1];
};

// Every thread of `pid`, which runs this program.
inline void SayThreads(const Symbols& symbols, pid_t pid) {
  char path[64];
  std::snprintf(path, sizeof(path), "/proc/%d/task", pid);
  const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;
  alignas(DirectoryEntry) char buffer[4096];
  for (;;) {
    const long got = syscall(SYS_getdents64, fd, buffer, sizeof(buffer));
    if (got <= 0) break;
    for (long at = 0; at < got;) {
      const auto* entry = reinterpret_cast<const DirectoryEntry*>(buffer + at);
      const char* name = buffer + at + offsetof(DirectoryEntry, name);
      if (name[0] != '.') SayThread(symbols, pid, name);
      at += entry->size;
    }
  }
  close(fd);
}

// --- the alarm --------------------------------------------------------------

inline void OnAlarm(int) {
  // Should this, too, not end.
  signal(SIGALRM, SIG_DFL);
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  alarm(20);
  const WatchdogState& state = Watchdog();
  SayLine("\nWATCHDOG: %s [%s] (process %d) is not done after %u s\n",
          state.what, state.detail, getpid(), state.seconds);
  const Symbols symbols;
  SayOwnStack(symbols);
  SayThreads(symbols, getpid());
  for (const std::atomic<pid_t>& child : state.children) {
    if (child == 0) continue;
    SayLine("WATCHDOG: child process %d\n", child.load());
    SayThreads(symbols, child);
    kill(child, SIGKILL);
  }
  _exit(kWatchdogExit);
}

// From now on this process has `seconds`.
inline void StartWatchdog(unsigned seconds) {
  Watchdog().seconds = seconds;
  signal(SIGALRM, &OnAlarm);
  alarm(seconds);
}

// Whatever the parent did to signals, as nohup and supervisors do: here they
// have their default meaning. The first call of backtrace(), which loads a
// library, is made here, too.
inline void PrepareProcess() {
  for (int number = 1; number < SIGRTMIN; ++number) {
    struct sigaction former;
    if (sigaction(number, nullptr, &former) == 0 &&
        former.sa_handler == SIG_IGN) {
      signal(number, SIG_DFL);
    }
  }
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  void* frame = nullptr;
  backtrace(&frame, 1);
}

// A process that a test starts must not outlive it.
inline void EndWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(125);
}

}  // namespace check

#endif  // TFRING_TESTS_ENGINE_WATCHDOG_H_
