#include "custom_ops/core/transport/tuning.h"

#include <algorithm>
#include <atomic>
#include <limits>
#include <system_error>
#include <thread>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/common/copy.h"
#include "custom_ops/core/common/futex.h"
#include "custom_ops/core/common/thread.h"

namespace tfring {
namespace {

constexpr int kRounds = 8;
constexpr int64_t kLongestNs = 1000000;
constexpr uint64_t kKib = 1024;

double MeasureCopy() {
  constexpr uint64_t kBytes = 64 * kKib;
  const std::vector<char> from(kBytes, 1);
  std::vector<char> to(kBytes);
  int64_t best = std::numeric_limits<int64_t>::max();
  const int64_t end = NowNs() + kLongestNs;
  for (int i = 0; i < kRounds && NowNs() < end; ++i) {
    const int64_t begin = NowNs();
    CopyBytes(to.data(), from.data(), kBytes);
    best = std::min(best, NowNs() - begin);
  }
  return static_cast<double>(best) / (kBytes / kKib);
}

void Await(std::atomic<uint32_t>* turn, uint32_t value) {
  constexpr int64_t kSecond = 1000000000;
  for (uint32_t now; (now = turn->load()) < value;) {
    FutexWait(turn, now, kSecond);
  }
}

// Two threads wake each other in turns.
double MeasureWake() {
  std::atomic<uint32_t> turn{0};
  const auto pass = [&turn](uint32_t value) {
    turn.store(value);
    FutexWakeAll(&turn);
  };
  std::thread other = StartThread("tfring-measure", [&] {
    for (uint32_t i = 1; i <= kRounds; ++i) {
      Await(&turn, 2 * i - 1);
      pass(2 * i);
    }
  });
  int64_t best = std::numeric_limits<int64_t>::max();
  for (uint32_t i = 1; i <= kRounds; ++i) {
    const int64_t begin = NowNs();
    pass(2 * i - 1);
    Await(&turn, 2 * i);
    best = std::min(best, NowNs() - begin);
  }
  other.join();
  return static_cast<double>(best) / 2;
}

MachineCosts Measure() {
  MachineCosts costs;
  costs.copy_ns_per_kib = MeasureCopy();
  try {
    costs.wake_ns = MeasureWake();
  } catch (const std::system_error&) {
    // No thread to be had: the usual cost will do.
  }
  return costs;
}

// The power of two that is the nearest one above, within limits.
uint64_t PowerOfTwo(double value, uint64_t least, uint64_t most) {
  uint64_t power = least;
  while (power < most && static_cast<double>(power) < value) power *= 2;
  return power;
}

}  // namespace

const MachineCosts& MeasuredCosts() {
  static const MachineCosts costs = Measure();
  return costs;
}

Tuning ChooseTuning(const MachineCosts& costs, int ranks, bool crowded) {
  Tuning tuning;
  // What a rank does for one chunk costs about as much as waking it: with less
  // the turns show, with more the chunk leaves the cache between two stages.
  // Four ranks on two processors, 100 MiB: 26 ms with 128 or 256 KiB, 35 with
  // 32, 43 from 512 on. Two ranks, 1 MiB: 57 us with 256 KiB, 61 with 128.
  constexpr double kPasses = 3;
  const uint64_t least = (crowded ? 128 : 256) * kKib;
  const double copy = std::max(costs.copy_ns_per_kib, 1.0);
  tuning.chunk_bytes =
      PowerOfTwo(costs.wake_ns / (kPasses * copy) * kKib, least, 2 * least);
  // A slot is written again after `depth` chunks. By then its lines should have
  // left the caches of the peers that read them: two ranks, 64 KiB of data that
  // take turns through the slots, which are 1 MiB in all: 6.6 us; 1.25: 5.2;
  // 1.5: 4.7; 1.75: 4.5; 2: 4.4; 1 MiB of data: 57 us where slots are 1 MiB, 95
  // where they are half of that. Where ranks share processors, their slots
  // compete for the same cache.
  tuning.depth = crowded ? 512 * kKib / tuning.chunk_bytes
                         : 2048 * kKib / tuning.chunk_bytes - 1;
  // Reducing everything on every rank saves a wait, but reads all slots, which
  // others have just written: at half the speed.
  constexpr double kSpunNs = 1000;
  const double wait = crowded ? costs.wake_ns : kSpunNs;
  tuning.direct_bytes = ranks <= 2
                            ? std::numeric_limits<uint64_t>::max()
                            : PowerOfTwo(wait / (2 * copy * (ranks - 2)) * kKib,
                                         4 * kKib, 128 * kKib);
  // Looking for as long as some wake-ups take costs at most twice what the best
  // choice would. On a crowded host looking means to let others run, each for
  // about as long as a wake-up takes: four ranks on two processors, 4 B: 3.3 us
  // with 20 to 300 us, 15 us with 5.
  const double looks = crowded ? 20 : 10;
  tuning.spin_ns = static_cast<int64_t>(
      std::clamp(looks * costs.wake_ns, crowded ? 50e3 : 5e3, 100e3));
  return tuning;
}

}  // namespace tfring
