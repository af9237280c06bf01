// A clock that jumps from event to event: simulated time costs nothing.
#ifndef TFRING_TESTS_SIMULATOR_EVENT_CLOCK_H_
#define TFRING_TESTS_SIMULATOR_EVENT_CLOCK_H_

#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace simulator {

using Nanoseconds = int64_t;

class EventClock {
 public:
  Nanoseconds now() const { return now_; }

  // Calls `event` at `when`; events of one time run in the order given.
  void At(Nanoseconds when, std::function<void()> event) {
    queue_.push({when, next_++, std::move(event)});
  }

  // Until nothing is left to happen.
  void Run() {
    while (!queue_.empty()) {
      // The queue only gives a constant reference; the order is not touched.
      auto event = std::move(const_cast<Entry&>(queue_.top()));
      queue_.pop();
      now_ = event.when;
      event.run();
    }
  }

 private:
  struct Entry {
    Nanoseconds when;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Entry& other) const {
      return when != other.when ? when > other.when : order > other.order;
    }
  };

  Nanoseconds now_ = 0;
  uint64_t next_ = 0;
  std::priority_queue<Entry> queue_;
};

}  // namespace simulator

#endif  // TFRING_TESTS_SIMULATOR_EVENT_CLOCK_H_
