// A small test harness for the engine.
//
//   TEST(name) { EXPECT_EQ(1 + 1, 2); }
//
// Each test file is one program. It runs all its tests, or those whose name
// contains the first argument, each under a watchdog (watchdog.h), and returns
// 0 if all passed. EXPECT_* records a failure and goes on; ASSERT_* also leaves
// the function. Both may be used from any thread of a test. Inside a loop over
// cases, CASE(...) makes failures name the case.
//
//   ROLE(name) { return argument == "x" ? 0 : 1; }
//
// is what a process does that a test starts (processes.h); its exit code.
#ifndef TFRING_TESTS_ENGINE_CHECK_H_
#define TFRING_TESTS_ENGINE_CHECK_H_

#include <sys/types.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <mutex>
#include <sstream>
#include <string>
#include <type_traits>
#include <vector>

#include "watchdog.h"

namespace check {

struct TestCase {
  const char* name;
  std::function<void()> body;
};

inline std::vector<TestCase>& Registry() {
  static std::vector<TestCase> tests;
  return tests;
}

struct Registrar {
  Registrar(const char* name, std::function<void()> body) {
    Registry().push_back({name, std::move(body)});
  }
};

// What a child process of a test does.
struct Role {
  const char* name;
  int (*body)(int rank, const std::string& store, const std::string& argument);
};

inline std::vector<Role>& Roles() {
  static std::vector<Role> roles;
  return roles;
}

struct RoleRegistrar {
  explicit RoleRegistrar(const Role& role) { Roles().push_back(role); }
};

// The failures of the test that runs now.
class Failures {
 public:
  void Clear() {
    const std::lock_guard<std::mutex> lock(mutex_);
    count_ = 0;
    hung_ = false;
  }
  // Something did not end in time: no further test is run.
  void SetHung(bool hung) {
    const std::lock_guard<std::mutex> lock(mutex_);
    hung_ = hung;
  }
  bool hung() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return hung_;
  }
  void Add(const char* file, int line, const std::string& where,
           const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++count_;
    std::fprintf(stderr, "%s:%d: %s%s%s%s\n", file, line,
                 where.empty() ? "" : "[", where.c_str(),
                 where.empty() ? "" : "] ", text.c_str());
  }
  int count() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return count_;
  }

 private:
  std::mutex mutex_;
  int count_ = 0;
  bool hung_ = false;
};

inline Failures& CurrentFailures() {
  static Failures failures;
  return failures;
}

inline std::string& CurrentCase() {
  static thread_local std::string text;
  return text;
}

// Names the case that this thread runs, until the end of the scope.
class ScopedCase {
 public:
  explicit ScopedCase(std::string text) : former_(CurrentCase()) {
    Set(std::move(text));
  }
  ~ScopedCase() { Set(former_); }
  ScopedCase(const ScopedCase&) = delete;
  ScopedCase& operator=(const ScopedCase&) = delete;

 private:
  // The watchdog shows the case of the last thread that began or ended one.
  static void Set(std::string text) {
    SetWatchdogDetail(text.c_str());
    CurrentCase() = std::move(text);
  }

  std::string former_;
};

template <typename... Args>
std::string Join(const Args&... args) {
  std::ostringstream text;
  static_cast<void>((text << ... << args));
  return text.str();
}

template <typename T, typename = void>
struct Printable : std::false_type {};
template <typename T>
struct Printable<T, std::void_t<decltype(std::declval<std::ostream&>()
                                         << std::declval<const T&>())>>
    : std::true_type {};

template <typename T>
std::string Show(const T& value) {
  std::ostringstream text;
  if constexpr (std::is_enum_v<T>) {
    text << static_cast<long long>(value);
  } else if constexpr (std::is_same_v<T, uint8_t> ||
                       std::is_same_v<T, int8_t>) {
    text << static_cast<int>(value);
  } else if constexpr (Printable<T>::value) {
    text << value;
  } else {
    text << "(a value of " << sizeof(T) << " bytes)";
  }
  const std::string all = text.str();
  return all.size() <= 400 ? all : all.substr(0, 400) + "...";
}

template <typename T>
std::string Show(const std::vector<T>& values) {
  std::string text = "{";
  for (size_t i = 0; i < values.size() && i < 20; ++i) {
    text += (i == 0 ? "" : ", ") + Show(values[i]);
  }
  return text + (values.size() > 20 ? ", ...}" : "}");
}

inline bool Record(bool passed, const char* file, int line,
                   const std::string& text) {
  if (!passed) CurrentFailures().Add(file, line, CurrentCase(), text);
  return passed;
}

template <typename A, typename B>
bool Compare(bool passed, const A& a, const B& b, const char* expression,
             const char* file, int line) {
  if (passed) return true;
  return Record(
      false, file, line,
      Join("expected ", expression, "; left: ", Show(a), "; right: ", Show(b)));
}

template <typename S>
bool CheckOk(const S& status, const char* expression, const char* file,
             int line) {
  if (status.ok()) return true;
  return Record(false, file, line,
                Join(expression, " is not OK: code ",
                     static_cast<int>(status.code()), ", ", status.message()));
}

inline bool CheckContains(const std::string& text, const std::string& part,
                          const char* file, int line) {
  return Record(text.find(part) != std::string::npos, file, line,
                Join("expected \"", part, "\" in \"", text, "\""));
}

// Of a test, or of each of its parts that call RestartWatchdog(), and of a
// child process of a test.
#if defined(__SANITIZE_THREAD__)
constexpr unsigned kPatience = 2;  // everything takes longer
#else
constexpr unsigned kPatience = 1;
#endif
constexpr unsigned kTestSeconds = 120 * kPatience;
constexpr unsigned kChildSeconds = 60 * kPatience;

inline void RestartWatchdog() { StartWatchdog(kTestSeconds); }

// Returns whether the test passed.
inline bool RunOne(const TestCase& test) {
  CurrentFailures().Clear();
  Watchdog().what = test.name;
  RestartWatchdog();
  test.body();
  alarm(0);
  const bool ok = CurrentFailures().count() == 0;
  std::printf("%s %s\n", ok ? "ok  " : "FAIL", test.name);
  std::fflush(stdout);
  return ok;
}

inline int RunTests(const char* filter) {
  int passed = 0;
  int failed = 0;
  for (const TestCase& test : Registry()) {
    if (std::strstr(test.name, filter) == nullptr) continue;
    ++(RunOne(test) ? passed : failed);
    if (CurrentFailures().hung()) {
      std::printf("the rest is not run\n");
      break;
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed == 0 && passed > 0 ? 0 : 1;
}

// `--role NAME RANK STORE ARGUMENT PARENT`
inline int RunRole(char** argv) {
  EndWithParent(std::atoi(argv[6]));
  const std::string what = Join("rank ", argv[3], " in the role ", argv[2]);
  prctl(PR_SET_NAME, Join("rank ", argv[3]).c_str());
  Watchdog().what = what.c_str();
  SetWatchdogDetail(argv[5]);
  StartWatchdog(kChildSeconds);
  for (const Role& role : Roles()) {
    if (std::strcmp(role.name, argv[2]) == 0) {
      return role.body(std::atoi(argv[3]), argv[4], argv[5]);
    }
  }
  return 126;
}

inline int Main(int argc, char** argv) {
  PrepareProcess();
  if (argc == 7 && std::strcmp(argv[1], "--role") == 0) {
    // Without the destructors of a program that ends in good order.
    _exit(RunRole(argv));
  }
  return RunTests(argc > 1 ? argv[1] : "");
}

}  // namespace check

#define TEST(name)                                                      \
  static void Test_##name();                                            \
  static const ::check::Registrar registrar_##name(#name, Test_##name); \
  static void Test_##name()

// `int rank`, `const std::string& store` and `const std::string& argument` are
// in reach.
#define ROLE(name)                                                       \
  static int Role_##name(int, const std::string&, const std::string&);   \
  static const ::check::RoleRegistrar role_##name({#name, Role_##name}); \
  static int Role_##name([[maybe_unused]] int rank,                      \
                         [[maybe_unused]] const std::string& store,      \
                         [[maybe_unused]] const std::string& argument)

#define CHECK_JOIN_INNER(a, b) a##b
#define CHECK_JOIN(a, b) CHECK_JOIN_INNER(a, b)
#define CASE(...)                             \
  const ::check::ScopedCase CHECK_JOIN(case_, \
                                       __LINE__)(::check::Join(__VA_ARGS__))

#define CHECK_COMPARE(a, op, b)                                            \
  [&](const auto& a_, const auto& b_) {                                    \
    return ::check::Compare(a_ op b_, a_, b_, #a " " #op " " #b, __FILE__, \
                            __LINE__);                                     \
  }((a), (b))

#define EXPECT_TRUE(x) \
  ::check::Record(bool(x), __FILE__, __LINE__, "not true: " #x)
#define EXPECT_FALSE(x) \
  ::check::Record(!(x), __FILE__, __LINE__, "not false: " #x)
#define EXPECT_EQ(a, b) CHECK_COMPARE(a, ==, b)
#define EXPECT_NE(a, b) CHECK_COMPARE(a, !=, b)
#define EXPECT_LT(a, b) CHECK_COMPARE(a, <, b)
#define EXPECT_LE(a, b) CHECK_COMPARE(a, <=, b)
#define EXPECT_GT(a, b) CHECK_COMPARE(a, >, b)
#define EXPECT_GE(a, b) CHECK_COMPARE(a, >=, b)
#define EXPECT_OK(status) \
  ::check::CheckOk((status), #status, __FILE__, __LINE__)
#define EXPECT_CONTAINS(text, part) \
  ::check::CheckContains((text), (part), __FILE__, __LINE__)

#define ASSERT_TRUE(x)           \
  do {                           \
    if (!EXPECT_TRUE(x)) return; \
  } while (false)
#define ASSERT_FALSE(x)           \
  do {                            \
    if (!EXPECT_FALSE(x)) return; \
  } while (false)
#define ASSERT_EQ(a, b)           \
  do {                            \
    if (!EXPECT_EQ(a, b)) return; \
  } while (false)
#define ASSERT_OK(status)           \
  do {                              \
    if (!EXPECT_OK(status)) return; \
  } while (false)

int main(int argc, char** argv) { return ::check::Main(argc, argv); }

#endif  // TFRING_TESTS_ENGINE_CHECK_H_
