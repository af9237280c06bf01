// Jobs in every layout of hosts.
#ifndef TFRING_TESTS_ENGINE_LAYOUTS_H_
#define TFRING_TESTS_ENGINE_LAYOUTS_H_

#include <string>
#include <vector>

#include "job.h"

namespace tfring_test {

struct Layout {
  const char* name;
  std::vector<std::string> hosts;
  bool shared_memory;
};

inline std::vector<Layout> Layouts(int size) {
  std::vector<std::string> one(static_cast<size_t>(size), "a");
  std::vector<std::string> two;
  std::vector<std::string> uneven;
  for (int r = 0; r < size; ++r) {
    two.push_back(r % 2 == 0 ? "a" : "b");
    uneven.push_back(r == size - 1 ? "b" : "a");
  }
  return {{"one host", one, true},
          {"two hosts", two, true},
          {"uneven hosts", uneven, true},
          {"tcp only", one, false}};
}

template <typename Body>
void ForEachJob(const std::vector<int>& sizes, Body&& body) {
  for (const int size : sizes) {
    for (const Layout& layout : Layouts(size)) {
      CASE(size, " ranks, ", layout.name);
      JobOptions options;
      options.size = size;
      options.hosts = layout.hosts;
      options.shared_memory = layout.shared_memory;
      body(options);
    }
  }
}

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_LAYOUTS_H_
