// Where a collective's time goes: who is waited for, and what is transfer.
#include "custom_ops/core/schedule/timing.h"

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "custom_ops/core/schedule/recorder.h"
#include "layouts.h"

namespace tfring_test {
namespace {

using tfring::Moments;
using tfring::Recorder;
using tfring::Timing;

constexpr uint64_t kMs = 1000000;

TEST(AWaitCountsForTheRankThatEndsIt) {
  Timing timing(0, 3);
  timing.Count(Moments{100, 100, 300, 310, 350}, 2);
  EXPECT_EQ(timing.wait_ns(), 200u);
  EXPECT_EQ(timing.waited_for(2), 200u);
  EXPECT_EQ(timing.waited_for(1), 0u);
  EXPECT_EQ(timing.queue_ns(), 10u);
  EXPECT_EQ(timing.transfer_ns(), 40u);
}

TEST(ManyThatWaitAtOnceCountOnce) {
  Timing timing(0, 2);
  // Both are submitted at 100 and 110; rank 1 submits them at 300 and 320.
  timing.Count(Moments{100, 100, 300, 300, 310}, 1);
  timing.Count(Moments{110, 110, 320, 320, 330}, 1);
  EXPECT_EQ(timing.waited_for(1), 210u);
  EXPECT_EQ(timing.transfer_ns(), 20u);
  EXPECT_EQ(timing.queue_ns(), 0u);
}

TEST(WhatOthersRunMeanwhileIsNoWait) {
  Timing timing(0, 2);
  timing.Count(Moments{100, 100, 110, 110, 400}, 1);
  timing.Count(Moments{120, 120, 300, 400, 410}, 1);
  EXPECT_EQ(timing.waited_for(1), 10u);
  EXPECT_EQ(timing.queue_ns(), 100u);
}

TEST(NobodyWaitsForItself) {
  Timing timing(1, 2);
  timing.Count(Moments{100, 300, 300, 305, 310}, 1);
  EXPECT_EQ(timing.wait_ns(), 0u);
  EXPECT_EQ(timing.waited_for(1), 0u);
  EXPECT_EQ(timing.queue_ns(), 5u);
}

// A log entry may be stamped a little before this rank's own submission.
TEST(NothingIsNegative) {
  Timing timing(0, 2);
  timing.Count(Moments{100, 100, 90, 101, 102}, 1);
  EXPECT_EQ(timing.wait_ns(), 0u);
  EXPECT_EQ(timing.queue_ns(), 1u);
}

tfr_record Named(const std::string& name) {
  tfr_record record = {};
  name.copy(record.name, sizeof(record.name) - 1);
  return record;
}

std::vector<std::string> Take(Recorder* recorder, uint64_t* lost) {
  std::vector<tfr_record> records(8);
  records.resize(recorder->Take(records.data(), records.size(), lost));
  std::vector<std::string> names;
  for (const tfr_record& record : records) names.emplace_back(record.name);
  return names;
}

TEST(ARecorderKeepsTheNewest) {
  Recorder recorder;
  EXPECT_FALSE(recorder.on());
  recorder.Add(Named("off"));
  recorder.Start(2);
  EXPECT_TRUE(recorder.on());
  for (const char* name : {"a", "b", "c"}) recorder.Add(Named(name));
  uint64_t lost = 0;
  EXPECT_TRUE(Take(&recorder, &lost) == (std::vector<std::string>{"b", "c"}));
  EXPECT_EQ(lost, 1u);
  recorder.Add(Named("d"));
  EXPECT_TRUE(Take(&recorder, &lost) == (std::vector<std::string>{"d"}));
  EXPECT_EQ(lost, 0u);
  recorder.Start(0);
  EXPECT_FALSE(recorder.on());
  EXPECT_TRUE(Take(&recorder, &lost).empty());
}

uint64_t WaitedFor(const tfr_world* world, int rank, int size) {
  std::vector<uint64_t> ns(static_cast<size_t>(size));
  tfr_world_waits(world, ns.data());
  return ns[static_cast<size_t>(rank)];
}

// Rank 1 comes late to the third of five allreduces.
void ExpectWaitsForRank1(const JobOptions& options, int64_t count = 1000) {
  RunJob(options, [&](int rank, tfr_world* world) {
    EXPECT_EQ(tfr_world_record(world, 100, nullptr), TFR_OK);
    std::vector<float> values(static_cast<size_t>(count), 1.0f);
    Call call;
    call.tensors = {{{count}, TFR_FLOAT32, values.data(), values.data()}};
    for (int i = 0; i < 5; ++i) {
      if (options.faults.empty() && rank == 1 && i == 2) {
        std::this_thread::sleep_for(std::chrono::milliseconds(400));
      }
      EXPECT_EQ(call.Run(world), TFR_OK);
    }
    tfr_stats stats = {};
    tfr_world_stats(world, &stats);
    const uint64_t waited = WaitedFor(world, 1, options.size);
    EXPECT_LT(stats.transfer_ns, 300 * kMs);
    tfr_record records[8];
    uint64_t lost = 0;
    ASSERT_EQ(tfr_world_records(world, records, 8, &lost), 5u);
    EXPECT_EQ(records[2].last_rank, 1);
    EXPECT_EQ(records[2].bytes, static_cast<uint64_t>(4 * count));
    EXPECT_EQ(std::string(records[2].name), "t");
    const auto wait =
        static_cast<uint64_t>(records[2].agreed_ns - records[2].submitted_ns);
    if (rank == 1) {
      EXPECT_EQ(waited, 0u);
      EXPECT_LT(stats.wait_ns, 300 * kMs);
    } else {
      EXPECT_LT(300 * kMs, waited);
      EXPECT_LT(300 * kMs, wait);
      EXPECT_LT(waited, stats.wait_ns + 1);
    }
  });
}

TEST(ALateRankIsWaitedForInsideAHost) {
  JobOptions options;
  options.size = 3;
  options.faults = "rank=1 collective=2 do=late:400";
  ExpectWaitsForRank1(options);
}

TEST(ALateRankIsWaitedForByASmallCollective) {
  JobOptions options;
  options.size = 3;
  ExpectWaitsForRank1(options, 2);
}

// A rank with faults refuses to run it in one round: then the others announce
// later than it does, but had it earlier.
TEST(ALateRankThatRefusesIsTheOneWaitedFor) {
  JobOptions options;
  options.size = 3;
  options.faults = "rank=1 collective=2 do=late:400";
  ExpectWaitsForRank1(options, 2);
}

TEST(ALateRankIsWaitedForBetweenHosts) {
  JobOptions options;
  options.size = 4;
  options.hosts = {"a", "a", "b", "b"};
  options.faults = "rank=1 collective=2 do=late:400";
  ExpectWaitsForRank1(options);
}

// A GPU's collectives: 100 to 200, and 150 to 250 at the same time.
TEST(WhatOverlapsOnAGpuCountsOnce) {
  tfring::Timing timing(0, 1);
  tfring::Moments moments;
  moments.ended = 100;
  timing.CountFlight(moments, 200);
  moments.ended = 150;
  timing.CountFlight(moments, 250);
  EXPECT_EQ(timing.transfer_ns(), 150u);
}

}  // namespace
}  // namespace tfring_test
