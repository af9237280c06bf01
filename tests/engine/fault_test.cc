// Arguments that are wrong on one rank: every rank is told, none hangs, and the
// engine works afterwards.
#include "layouts.h"

namespace tfring_test {
namespace {

void ExpectUsable(int rank, int size, tfr_world* world) {
  float value = static_cast<float>(rank + 1);
  Call call;
  call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
  ASSERT_EQ(call.Run(world), TFR_OK);
  EXPECT_EQ(value, static_cast<float>(size * (size + 1)) / 2.0f);
}

// The last rank runs `bad` and all others `good`, which names no tensor of
// its own that would be written.
void ExpectFault(const JobOptions& options, const Call& bad, const Call& good,
                 const std::string& text) {
  RunJob(options, [&](int rank, tfr_world* world) {
    const int culprit = options.size - 1;
    tfr_error error = {};
    const Call& call = rank == culprit ? bad : good;
    EXPECT_EQ(call.Run(world, &error), TFR_INVALID_ARGUMENT);
    const std::string want = "rank " + std::to_string(culprit) + ": " + text;
    EXPECT_CONTAINS(std::string(error.text), want);
    EXPECT_CONTAINS(std::string(error.text), "'t'");
    ExpectUsable(rank, options.size, world);
  });
}

TEST(AnnouncedFaultFailsAllRanks) {
  ForEachJob({1, 2, 3, 4}, [](const JobOptions& options) {
    float value = 0;
    Call good;
    good.tensors = {{{}, TFR_FLOAT32, &value, &value}};
    Call bad;
    bad.fault = "`x` must be positive. Received: x=-1";
    ExpectFault(options, bad, good, bad.fault);
  });
}

TEST(FaultOfAnotherKindFailsAllRanks) {
  ForEachJob({2, 3}, [](const JobOptions& options) {
    Call bad;
    bad.kind = TFR_BROADCAST;
    bad.fault = "no such root";
    Call good;
    good.kind = TFR_BARRIER;
    ExpectFault(options, bad, good, "no such root");
  });
}

TEST(AllRanksAtFaultAreNamedOnce) {
  RunJob({}, [](int rank, tfr_world* world) {
    Call bad;
    bad.fault = rank == 0 ? "a is wrong" : "b is wrong";
    tfr_error error = {};
    EXPECT_EQ(bad.Run(world, &error), TFR_INVALID_ARGUMENT);
    EXPECT_CONTAINS(std::string(error.text),
                    "rank 0: a is wrong; rank 1: b is wrong");
    bad.fault = "c is wrong";
    EXPECT_EQ(bad.Run(world, &error), TFR_INVALID_ARGUMENT);
    EXPECT_CONTAINS(std::string(error.text), "ranks 0 and 1: c is wrong");
    ExpectUsable(rank, 2, world);
  });
}

TEST(LongFaultsAreCut) {
  RunJob({}, [](int rank, tfr_world* world) {
    const std::string text(10000, 'x');
    Call call;
    if (rank == 0) call.fault = text.c_str();
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_INVALID_ARGUMENT);
    EXPECT_CONTAINS(std::string(error.text), "rank 0: xxx");
    ExpectUsable(rank, 2, world);
  });
}

TEST(FaultsOnOneRankAreFoundByTheEngine) {
  for (const int size : {1, 2}) {
    CASE(size, " ranks");
    JobOptions options;
    options.size = size;
    float value = 0;
    const Tensor scalar = {{}, TFR_FLOAT32, &value, &value};
    const Tensor flag = {{}, TFR_BOOL, &value, &value};
    const Tensor whole = {{}, TFR_INT32, &value, &value};
    Call good;
    good.kind = TFR_BARRIER;
    Call bad;
    bad.tensors = {scalar};
    bad.kind = TFR_ALLGATHER;
    ExpectFault(options, bad, good, "a scalar cannot be gathered");
    bad.kind = TFR_BROADCAST;
    bad.root = 2;
    ExpectFault(options, bad, good, "`root_rank` must");
    bad.root = -1;
    ExpectFault(options, bad, good, "`root_rank` must");
    bad = Call();
    bad.tensors = {flag};
    ExpectFault(options, bad, good, "tensor 0 is bool, which has no Sum");
    bad.reduce_op = TFR_AVERAGE;
    ExpectFault(options, bad, good, "tensor 0 is bool, which has no Average");
    bad.reduce_op = TFR_ADASUM;
    bad.tensors = {scalar, whole};
    ExpectFault(options, bad, good, "tensor 1 is int32, but Adasum");
    bad.reduce_op = 17;
    ExpectFault(options, bad, good, "`op` must be Average, Sum, Adasum");
  }
}

TEST(AdasumNeedsAPowerOfTwoRanks) {
  JobOptions options;
  options.size = 3;
  RunJob(options, [](int rank, tfr_world* world) {
    float value = 0;
    Call call;
    call.reduce_op = TFR_ADASUM;
    call.tensors = {{{}, TFR_FLOAT32, &value, &value}};
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_INVALID_ARGUMENT);
    EXPECT_CONTAINS(std::string(error.text), "power of two. Received: 3 ranks");
    ExpectUsable(rank, 3, world);
  });
}

TEST(NoNameAndUnknownKindAreRefusedHere) {
  RunJob({}, [](int rank, tfr_world* world) {
    if (rank == 1) return;
    Call call;
    call.name = "";
    EXPECT_EQ(call.Run(world), TFR_INVALID_ARGUMENT);
    call = Call();
    call.kind = 99;
    EXPECT_EQ(call.Run(world), TFR_INVALID_ARGUMENT);
  });
}

TEST(ManyFaultsInARowLeaveTheEngineUsable) {
  ForEachJob({2, 4}, [](const JobOptions& options) {
    RunJob(options, [&](int rank, tfr_world* world) {
      for (int i = 0; i < 20; ++i) {
        Call call;
        if (rank == i % options.size) call.fault = "wrong";
        EXPECT_EQ(call.Run(world), TFR_INVALID_ARGUMENT);
        ExpectUsable(rank, options.size, world);
      }
    });
  });
}

}  // namespace
}  // namespace tfring_test
