// What this process holds: descriptors and threads.
#ifndef TFRING_TESTS_ENGINE_RESOURCES_H_
#define TFRING_TESTS_ENGINE_RESOURCES_H_

#include <dirent.h>

#include <thread>

#include "custom_ops/core/common/clock.h"

namespace tfring_test {

inline int CountEntries(const char* path) {
  int count = 0;
  DIR* folder = opendir(path);
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// A reading may be too high for a moment: a thread of the engine may be about
// to let go of something, and the kernel still lists threads that have just
// been joined. It is never too low.
struct Resources {
  int descriptors = CountEntries("/proc/self/fd");
  int threads = CountEntries("/proc/self/task");
};

// Waits until no more is held than before. What leaks never comes down.
inline bool ComesDownTo(const Resources& before) {
  const auto deadline = tfring::Deadline::After(30);
  do {
    const Resources now;
    if (now.descriptors <= before.descriptors &&
        now.threads <= before.threads) {
      return true;
    }
    std::this_thread::yield();
  } while (!deadline.expired());
  return false;
}

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_RESOURCES_H_
