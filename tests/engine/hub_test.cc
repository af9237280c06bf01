// What rank 0 decides: when hosts agree, and whom a stalled collective misses.
#include "custom_ops/core/schedule/hub.h"

#include "check.h"
#include "custom_ops/core/rendezvous/identity.h"

namespace tfring {
namespace {

GroupMembers FourRanksOnTwoHosts() {
  return MembersOf(0, {"a", "a", "b", "b"}, {"a", "a", "b", "b"});
}

TEST(RunsOnceAllHostsHaveIt) {
  const GroupMembers members = FourRanksOnTwoHosts();
  Hub hub(&members);
  EXPECT_FALSE(hub.HostReady(1, 7, 99, true).has_value());
  const auto entry = hub.HostReady(0, 7, 99, true);
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->uid, 7u);
  EXPECT_TRUE(entry->verdict == Verdict::kRun);
}

TEST(HostsThatDifferAreAMismatch) {
  const GroupMembers members = FourRanksOnTwoHosts();
  for (const bool same_digest : {false, true}) {
    CASE(same_digest ? "inside a host" : "between hosts");
    Hub hub(&members);
    hub.HostReady(0, 7, 99, !same_digest);
    const auto entry = hub.HostReady(1, 7, same_digest ? 99 : 98, true);
    ASSERT_TRUE(entry.has_value());
    EXPECT_TRUE(entry->verdict == Verdict::kMismatch);
  }
}

std::string AskAll(Hub* hub, const std::set<int>& absent, bool fatal) {
  EXPECT_TRUE(hub->StartInquiry(7, "allreduce 'g' still", fatal));
  for (int rank = 0; rank < 4; ++rank) {
    hub->Answer(7, rank, absent.count(rank) == 0);
  }
  const auto reports = hub->FinishedInquiries();
  return reports.empty() ? "" : reports.front().text;
}

TEST(StallNamesThoseWhoDoNotHaveIt) {
  const GroupMembers members = FourRanksOnTwoHosts();
  for (const bool fatal : {false, true}) {
    Hub hub(&members);
    EXPECT_EQ(AskAll(&hub, {1, 3}, fatal),
              "allreduce 'g' still waits for ranks 1 and 3");
  }
}

TEST(OneInquiryAtATimeAndAFatalOneAfterAWarning) {
  const GroupMembers members = FourRanksOnTwoHosts();
  Hub hub(&members);
  EXPECT_TRUE(hub.StartInquiry(7, "t", false));
  EXPECT_FALSE(hub.StartInquiry(7, "t", false));
  EXPECT_TRUE(hub.StartInquiry(7, "t", true));
  EXPECT_FALSE(hub.StartInquiry(7, "t", true));
}

TEST(StallThatMissesNobodySaysSo) {
  const GroupMembers members = FourRanksOnTwoHosts();
  Hub warned(&members);
  EXPECT_EQ(AskAll(&warned, {}, false), "");
  Hub failed(&members);
  EXPECT_CONTAINS(AskAll(&failed, {}, true), "although every rank");
}

TEST(ListsOfRanks) {
  EXPECT_EQ(RankList({3}), "rank 3");
  EXPECT_EQ(RankList({1, 4}), "ranks 1 and 4");
  EXPECT_EQ(RankList({1, 4, 5}), "ranks 1, 4 and 5");
}

}  // namespace
}  // namespace tfring
