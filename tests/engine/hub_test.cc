// What rank 0 decides: when hosts agree, and whom a stalled collective misses.
#include "custom_ops/core/schedule/hub.h"

#include <poll.h>

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

TEST(ARunningCollectiveMissesWhoeverDoesNotAnswer) {
  const GroupMembers members = FourRanksOnTwoHosts();
  Hub hub(&members);
  ASSERT_TRUE(hub.StartInquiry(7, "no data", false, false, true));
  for (int rank = 0; rank < 4; ++rank) hub.Answer(7, rank, true);
  const auto warned = hub.FinishedInquiries();
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_EQ(warned[0].text, "no data; all ranks answer, though");
  ASSERT_TRUE(hub.StartInquiry(7, "no data", true, false, true));
  for (const int rank : {0, 1, 3}) hub.Answer(7, rank, true);
  EXPECT_TRUE(hub.FinishedInquiries().empty());
  poll(nullptr, 0, hub.NextInquiry().PollMs());
  const auto failed = hub.FinishedInquiries();
  ASSERT_EQ(failed.size(), 1u);
  EXPECT_EQ(failed[0].text, "no data; rank 2 (host b) does not answer");
  EXPECT_TRUE(failed[0].fatal);
}

TEST(AHostThatHasJoinedIsNotWaitedFor) {
  const GroupMembers members = FourRanksOnTwoHosts();
  for (const bool ready_first : {false, true}) {
    CASE(ready_first ? "ready, then joined" : "joined, then ready");
    Hub hub(&members);
    if (ready_first) {
      EXPECT_FALSE(hub.HostReady(0, 7, 99, true).has_value());
      const auto entries = hub.HostJoined(1, 3);
      ASSERT_EQ(entries.size(), 1u);
      EXPECT_EQ(entries[0].uid, 7u);
      EXPECT_TRUE(entries[0].verdict == Verdict::kRunJoined);
    } else {
      EXPECT_EQ(hub.HostJoined(1, 3).size(), 0u);
      const auto entry = hub.HostReady(0, 7, 99, false);
      ASSERT_TRUE(entry.has_value());
      EXPECT_TRUE(entry->verdict == Verdict::kMismatchJoined);
    }
    const auto end = hub.HostJoined(0, 1);
    ASSERT_EQ(end.size(), 1u);
    EXPECT_EQ(end[0].uid, 1u);
    EXPECT_TRUE(end[0].verdict == Verdict::kJoin);
    // From here on nobody is joined.
    EXPECT_FALSE(hub.HostReady(0, 8, 99, true).has_value());
    const auto next = hub.HostReady(1, 8, 99, true);
    ASSERT_TRUE(next.has_value());
    EXPECT_TRUE(next->verdict == Verdict::kRun);
  }
}

TEST(HostsWithSomeJoinedRanksSaySo) {
  const GroupMembers members = FourRanksOnTwoHosts();
  Hub hub(&members);
  EXPECT_FALSE(hub.HostReady(0, 7, 99, true, true).has_value());
  const auto entry = hub.HostReady(1, 7, 99, true);
  ASSERT_TRUE(entry.has_value());
  EXPECT_TRUE(entry->verdict == Verdict::kRunJoined);
}

TEST(AClosedHubGivesNoMoreEntries) {
  const GroupMembers members = FourRanksOnTwoHosts();
  Hub hub(&members);
  hub.HostReady(0, 7, 99, true);
  EXPECT_TRUE(hub.HostReady(1, 7, 99, true).has_value());
  hub.HostReady(0, 8, 99, true);
  EXPECT_EQ(hub.Close(), 1u);
  EXPECT_FALSE(hub.HostReady(1, 8, 99, true).has_value());
}

TEST(WhatWasLateAndIsStuckNowIsAskedAboutAgain) {
  const GroupMembers members = FourRanksOnTwoHosts();
  Hub hub(&members);
  AskAll(&hub, {2}, false);
  ASSERT_TRUE(hub.StartInquiry(7, "no data", false, false, true));
  EXPECT_FALSE(hub.StartInquiry(7, "no data", false, false, true));
  hub.Answer(7, 0, true);
  hub.Answer(7, 2, true);
  poll(nullptr, 0, hub.NextInquiry().PollMs());
  const auto warned = hub.FinishedInquiries();
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_EQ(warned[0].text,
            "no data; rank 1 (host a), rank 3 (host b) do not answer");
}

TEST(AJoinNamesOnlyIdleRanksAndAsksAgain) {
  const GroupMembers members = FourRanksOnTwoHosts();
  Hub hub(&members);
  const auto ask = [&](const std::set<int>& idle) {
    EXPECT_TRUE(hub.StartInquiry(9, "join still", true, true));
    for (int place = 0; place < 4; ++place) {
      hub.Answer(9, place, idle.count(place) == 0);
    }
    const auto reports = hub.FinishedInquiries();
    return reports.empty() ? "" : reports.front().text;
  };
  EXPECT_EQ(ask({}), "");
  EXPECT_EQ(ask({2}), "join still waits for rank 2");
}

TEST(SetsNameRanksOfTheJob) {
  const GroupMembers members = SubsetOf(FourRanksOnTwoHosts(), {1, 3});
  EXPECT_FALSE(members.included());
  EXPECT_EQ(members.host_count(), 2);
  Hub hub(&members);
  EXPECT_TRUE(hub.StartInquiry(7, "t", true));
  hub.Answer(7, 0, true);
  hub.Answer(7, 1, false);
  EXPECT_EQ(hub.FinishedInquiries().front().text, "t waits for rank 3");
}

TEST(ListsOfRanks) {
  EXPECT_EQ(RankList({3}), "rank 3");
  EXPECT_EQ(RankList({1, 4}), "ranks 1 and 4");
  EXPECT_EQ(RankList({1, 4, 5}), "ranks 1, 4 and 5");
}

}  // namespace
}  // namespace tfring
