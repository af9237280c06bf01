// The processors that a process may run on, and whether processes get in each
// other's way there.
#ifndef TFRING_CORE_COMMON_PROCESSORS_H_
#define TFRING_CORE_COMMON_PROCESSORS_H_

#include <cstddef>
#include <set>
#include <string>
#include <vector>

namespace tfring {

class Processors {
 public:
  Processors() = default;
  explicit Processors(std::set<int> numbers) : numbers_(std::move(numbers)) {}
  // The calling thread's; empty if the system does not tell.
  static Processors OfThisThread();

  // As in Linux' lists: "0-3,8".
  std::string Encode() const;
  static Processors Decode(const std::string& text);

  const std::set<int>& numbers() const { return numbers_; }
  size_t count() const { return numbers_.size(); }

 private:
  std::set<int> numbers_;
};

// How processes that may run on these share them.
struct ProcessorShare {
  bool crowded = false;   // they cannot all run at the same time
  size_t processors = 1;  // for the one at place `me`
};
ProcessorShare ShareProcessors(const std::vector<Processors>& all, size_t me);

}  // namespace tfring

#endif  // TFRING_CORE_COMMON_PROCESSORS_H_
