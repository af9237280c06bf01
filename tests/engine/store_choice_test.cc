// How chunks are stored on pretended machines: what a store costs is what the
// test says, not what it takes.
#include "custom_ops/core/collectives/store_choice.h"

#include "check.h"

namespace tfring_test {
namespace {

using tfring::StoreChoice;
using tfring::Stores;

constexpr uint64_t kMib = uint64_t{1} << 20;
constexpr uint64_t kChunk = kMib / 4;
constexpr uint64_t kFew = StoreChoice::kLeastBytes;

struct Machine {
  int64_t plain_ns;
  int64_t streaming_ns;
};
constexpr Machine kOneCache = {7000, 9000};
constexpr Machine kTwoCaches = {105000, 14000};

// Stores one chunk; gives how.
Stores StoreOne(const Machine& machine, StoreChoice* choice) {
  const Stores stores = choice->Next();
  choice->Stored(
      stores, kChunk,
      stores == Stores::kPlain ? machine.plain_ns : machine.streaming_ns);
  return stores;
}

// How many of the chunks were stored like that.
int CountOf(Stores wanted, int chunks, const Machine& machine,
            StoreChoice* choice) {
  int count = 0;
  for (int i = 0; i < chunks; ++i) {
    if (StoreOne(machine, choice) == wanted) ++count;
  }
  return count;
}

TEST(PlainWhereOneCacheIsShared) {
  StoreChoice choice;
  EXPECT_TRUE(CountOf(Stores::kStreaming, 4000, kOneCache, &choice) <
              4000 / 25);
  EXPECT_TRUE(choice.preferred() == Stores::kPlain);
}

// Though few bytes seem to cost so little streaming.
TEST(PlainForFewBytesWhereOneCacheIsShared) {
  StoreChoice choice;
  for (int i = 0; i < 10000; ++i) {
    const Stores stores = choice.Next();
    choice.Stored(stores, kFew, stores == Stores::kPlain ? 2300 : 640);
    EXPECT_TRUE(choice.preferred() == Stores::kPlain);
  }
}

TEST(StreamsForFewBytesWherePlainIsDear) {
  StoreChoice choice;
  for (int i = 0; i < 64; ++i) {
    const Stores stores = choice.Next();
    choice.Stored(stores, kFew, stores == Stores::kPlain ? 15000 : 640);
  }
  EXPECT_TRUE(choice.preferred() == Stores::kStreaming);
}

TEST(StreamsWithinFewChunksWherePlainIsDear) {
  StoreChoice choice;
  EXPECT_EQ(CountOf(Stores::kPlain, 64, kTwoCaches, &choice), 2);
  EXPECT_TRUE(choice.preferred() == Stores::kStreaming);
  EXPECT_TRUE(CountOf(Stores::kPlain, 10000, kTwoCaches, &choice) < 10000 / 80);
}

TEST(FollowsAMachineThatChanges) {
  StoreChoice choice;
  for (int cycle = 0; cycle < 5; ++cycle) {
    CASE("cycle ", cycle);
    CountOf(Stores::kPlain, 1100, kOneCache, &choice);
    EXPECT_TRUE(choice.preferred() == Stores::kPlain);
    EXPECT_TRUE(CountOf(Stores::kPlain, 64, kTwoCaches, &choice) <= 3);
    EXPECT_TRUE(choice.preferred() == Stores::kStreaming);
  }
}

TEST(AnInterruptionChangesNothing) {
  StoreChoice choice;
  CountOf(Stores::kPlain, 100, kOneCache, &choice);
  const Machine interrupted = {4000000, 4000000};
  for (int i = 0; i < 100; ++i) {
    StoreOne(interrupted, &choice);
    EXPECT_TRUE(choice.preferred() == Stores::kPlain);
    CountOf(Stores::kPlain, 7, kOneCache, &choice);
  }
  EXPECT_TRUE(choice.preferred() == Stores::kPlain);
}

// Lines that were streamed are fetched when they are stored plainly first.
TEST(ReturnsOnlyByWhatPlainStoresCostOnceSettled) {
  StoreChoice choice;
  CountOf(Stores::kPlain, 64, kTwoCaches, &choice);
  uint64_t plain_bytes = 0;
  int chunks = 0;
  for (; choice.preferred() == Stores::kStreaming && chunks < 1100; ++chunks) {
    const bool settled = plain_bytes >= StoreChoice::kSettleBytes;
    const Machine machine = {settled ? 7000 : 40000, 9000};
    const bool plain = StoreOne(machine, &choice) == Stores::kPlain;
    plain_bytes = plain ? plain_bytes + kChunk : 0;
  }
  EXPECT_TRUE(choice.preferred() == Stores::kPlain);
}

}  // namespace
}  // namespace tfring_test
