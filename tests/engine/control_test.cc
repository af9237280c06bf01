// What a rank makes of messages from rank 0.
#include "custom_ops/core/schedule/control.h"

#include "check.h"
#include "custom_ops/core/common/wire.h"
#include "custom_ops/core/rendezvous/identity.h"

namespace tfring {
namespace {

class SilentControl : public Control {
 public:
  using Control::Control;

 private:
  void Send(int, const std::string&) override {}
  void OnInquiry() override {}
  void OnRankLeft(int) override {}
};

struct Log : GroupEvents {
  void OnGo(const LogEntry& entry) override { entries.push_back(entry); }
  bool IsPending(uint64_t) override { return false; }
  void OnLeave(const Status&, uint64_t) override {}

  std::vector<LogEntry> entries;
};

std::string Go(uint64_t uid, uint64_t last) {
  constexpr uint32_t kGo = 2;
  std::string bytes;
  AppendInt(kGo, &bytes);
  AppendInt(uint32_t{0}, &bytes);  // text
  for (const uint64_t field :
       {kWorldNumber, uid, static_cast<uint64_t>(Verdict::kRun), last}) {
    AppendInt(field, &bytes);
  }
  return bytes;
}

TEST(APlaceThatIsNoneIsNotKnown) {
  const GroupMembers members = MembersOf(1, {"a", "b"}, {"a", "b"});
  Failures failures;
  SilentControl control(&members, &failures);
  const auto log = std::make_shared<Log>();
  control.AddGroup(std::make_shared<ControlGroup>(kWorldNumber, members, log));
  std::string received =
      Go(7, 1) + Go(8, 2) + Go(9, UINT64_MAX) + Go(10, uint64_t{1} << 32);
  ASSERT_TRUE(control.Receive(0, &received));
  ASSERT_EQ(log->entries.size(), 4u);
  EXPECT_EQ(log->entries[0].last, 1);
  for (size_t i = 1; i < 4; ++i) EXPECT_EQ(log->entries[i].last, -1);
}

}  // namespace
}  // namespace tfring
