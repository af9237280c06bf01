// How ranks of one host share its processors, for pretended bindings.
#include "custom_ops/core/common/processors.h"

#include <sched.h>

#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "custom_ops/core/rendezvous/group_memory.h"

namespace tfring_test {
namespace {

using tfring::FitToProcessors;
using tfring::MemoryOptions;
using tfring::Processors;

// As each rank of the host is bound; the rank at place 0 is asked about.
MemoryOptions Fit(const std::vector<std::string>& bound, int copy_threads = 0) {
  std::vector<Processors> here;
  for (const std::string& one : bound) here.push_back(Processors::Decode(one));
  MemoryOptions options;
  options.copy_threads = copy_threads;
  FitToProcessors(here, 0, &options);
  return options;
}

TEST(ListsAreThoseOfLinux) {
  for (const char* text : {"", "0", "0-3", "0-3,8", "1,3,5", "7,1000-1023"}) {
    EXPECT_EQ(Processors::Decode(text).Encode(), std::string(text));
  }
  EXPECT_EQ(Processors::Decode("0-3,8").count(), 5u);
  EXPECT_EQ(Processors::Decode("x").count(), 0u);
}

TEST(RanksThatAreNotBoundAreCrowdedIfTheyAreMore) {
  EXPECT_TRUE(!Fit({"0-1", "0-1"}).crowded);
  EXPECT_TRUE(Fit({"0-1", "0-1", "0-1"}).crowded);
  EXPECT_TRUE(Fit({"0", "0"}).crowded);
}

TEST(RanksBoundToProcessorsOfTheirOwnAreNotCrowded) {
  EXPECT_TRUE(!Fit({"0", "1"}).crowded);
  EXPECT_TRUE(!Fit({"3", "1", "2", "0"}).crowded);
  EXPECT_TRUE(!Fit({"0-1", "0", "2-3", "2"}).crowded);
}

// Though there are processors enough.
TEST(RanksBoundToTheSameAreCrowded) {
  EXPECT_TRUE(Fit({"0", "0", "1-7"}).crowded);
  EXPECT_TRUE(Fit({"4-7", "0-1", "0-1", "0-1"}).crowded);
}

TEST(WhereNothingIsKnownRanksAreCrowded) {
  EXPECT_TRUE(Fit({"", "0-3"}).crowded);
  EXPECT_EQ(Fit({"", "0-3"}).copy_threads, 1);
}

TEST(CopyThreadsAreARanksShare) {
  EXPECT_EQ(Fit({"0-7", "0-7"}).copy_threads, 4);
  EXPECT_EQ(Fit({"0-7", "0-7", "0-7"}).copy_threads, 2);
  EXPECT_EQ(Fit({"0-1", "2-3", "4-5", "6-7"}).copy_threads, 2);
  EXPECT_EQ(Fit({"0", "1-7"}).copy_threads, 1);
  EXPECT_EQ(Fit({"0", "0", "0"}).copy_threads, 1);
  EXPECT_EQ(Fit({"0-31"}).copy_threads, 4);
  EXPECT_EQ(Fit({"0", "0"}, 3).copy_threads, 3);
}

TEST(KnowsWhereThisThreadMayRun) {
  const Processors all = Processors::OfThisThread();
  ASSERT_TRUE(all.count() > 0);
  const int last = *all.numbers().rbegin();
  std::thread([last] {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(static_cast<size_t>(last), &set);
    ASSERT_EQ(sched_setaffinity(0, sizeof(set), &set), 0);
    EXPECT_EQ(Processors::OfThisThread().Encode(), std::to_string(last));
  }).join();
}

}  // namespace
}  // namespace tfring_test
