// One rank's group by itself: what shutdown does about a thread that is stuck.
#include "custom_ops/core/schedule/group.h"

#include <condition_variable>
#include <memory>
#include <mutex>

#include "check.h"
#include "custom_ops/core/rendezvous/identity.h"

namespace tfring_test {
namespace {

using tfring::Agreement;
using tfring::Deadline;
using tfring::Failure;
using tfring::Faults;
using tfring::Group;
using tfring::GroupMembers;
using tfring::GroupOptions;
using tfring::LocalGroup;
using tfring::LocalGroupShape;
using tfring::Operation;
using tfring::SharedMemory;
using tfring::Status;

// A group of one rank.
class Alone {
 public:
  explicit Alone(const GroupOptions& options)
      : members_(tfring::MembersOf(0, {"here"}, {"here"})) {
    LocalGroupShape shape;
    shape.agreement_bytes = Agreement::Bytes(1);
    shape.tuning.chunk_bytes = 64;
    shape.tuning.depth = 1;
    SharedMemory memory;
    EXPECT_OK(SharedMemory::Create(shape.TotalBytes(), &memory));
    local_ = std::make_unique<LocalGroup>(std::move(memory), shape, 0, false);
    local_->Initialize();
    Agreement(local_->agreement(), 1).Initialize();
    group_ = std::make_unique<Group>(&members_, local_.get(), nullptr,
                                     &failure_, &faults_, options);
    failure_.OnChange([this] { group_->OnFailure(); });
    group_->Start(nullptr);
  }

  Group& group() { return *group_; }
  Status Barrier(tfr_done done, void* user) {
    tfr_request request = {};
    request.name = "b";
    request.kind = TFR_BARRIER;
    request.done = done;
    request.user = user;
    std::unique_ptr<Operation> operation;
    EXPECT_OK(Operation::Create(request, members_, &operation));
    return group_->Submit(std::move(operation));
  }

 private:
  const GroupMembers members_;
  Failure failure_;
  Faults faults_;
  std::unique_ptr<LocalGroup> local_;
  std::unique_ptr<Group> group_;
};

// Holds whoever passes until it is opened.
class Gate {
 public:
  static void Pass(void* gate, const tfr_error*) {
    auto* self = static_cast<Gate*>(gate);
    std::unique_lock<std::mutex> lock(self->mutex_);
    self->reached_ = true;
    self->changed_.notify_all();
    self->changed_.wait(lock, [self] { return self->open_; });
  }
  void AwaitVisitor() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return reached_; });
  }
  void Open() {
    const std::lock_guard<std::mutex> lock(mutex_);
    open_ = true;
    changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool reached_ = false;
  bool open_ = false;
};

TEST(StopNamesAnOperationThatDoesNotEnd) {
  GroupOptions options;
  options.end_after_s = 0.2;
  Gate gate;
  Alone alone(options);
  EXPECT_OK(alone.Barrier(&Gate::Pass, &gate));
  gate.AwaitVisitor();
  alone.group().Close(tfring::FailedPrecondition("shut down"));
  uint64_t executed = 0;
  const Status stopped = alone.group().Stop(Deadline::After(0.1), &executed);
  EXPECT_EQ(stopped.code(), TFR_UNAVAILABLE);
  EXPECT_CONTAINS(stopped.message(),
                  "barrier 'b' was aborted but has not ended within 0.2 s");
  gate.Open();
  EXPECT_OK(alone.group().Stop(Deadline::After(20), &executed));
  EXPECT_EQ(executed, 1u);
}

TEST(StopFinishesWhatIsAgreedOn) {
  Gate gate;
  gate.Open();
  Alone alone(GroupOptions{});
  for (int i = 0; i < 100; ++i) EXPECT_OK(alone.Barrier(&Gate::Pass, &gate));
  alone.group().Close(tfring::FailedPrecondition("shut down"));
  uint64_t executed = 0;
  EXPECT_OK(alone.group().Stop(Deadline::After(20), &executed));
  EXPECT_EQ(executed, 100u);
  EXPECT_EQ(alone.Barrier(&Gate::Pass, &gate).code(), TFR_FAILED_PRECONDITION);
}

}  // namespace
}  // namespace tfring_test
