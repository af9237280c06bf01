#include "custom_ops/core/schedule/process_sets.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <memory>
#include <set>
#include <utility>

#include "custom_ops/core/collectives/gather.h"
#include "custom_ops/core/rendezvous/subset.h"

namespace tfring {
namespace {

// What ranks tell each other while a set is formed: one byte that says whether
// it went well, then an offer or a reason.
constexpr size_t kWordBytes = 512;
constexpr char kGood = '+';
constexpr char kBad = '-';
// How long collectives that a removed set still runs may take to end.
constexpr double kEndSeconds = 3.0;

constexpr int64_t kHandleStep = int64_t{1} << 32;

int32_t IdOf(int64_t handle) {
  return static_cast<int32_t>(handle % kHandleStep);
}

std::string ListOf(const std::vector<int>& ranks) {
  return RankList({ranks.begin(), ranks.end()});
}

// Tells all ranks `status`, with `text` if it is OK, and gives what each said.
// The first rank's error, if there is one: the same on all ranks.
Status TellAll(DataPlane* plane, const Status& status, const std::string& text,
               std::vector<std::string>* words) {
  std::string mine = status.ok() ? kGood + text : kBad + status.message();
  mine.resize(kWordBytes, '\0');
  std::string all;
  TFR_RETURN_IF_ERROR(GatherSmall(plane, mine, &all));
  words->clear();
  for (size_t at = 0; at < all.size(); at += kWordBytes) {
    words->emplace_back(all.c_str() + at,
                        strnlen(all.c_str() + at, kWordBytes));
  }
  for (size_t rank = 0; rank < words->size(); ++rank) {
    std::string& word = (*words)[rank];
    if (word[0] == kBad) {
      return ResourceExhausted(StrCat("the process set cannot be made: rank ",
                                      rank, ": ", word.substr(1)));
    }
    word.erase(0, 1);
  }
  return Status::Ok();
}

// Memory and threads can run out; that must reach the other ranks as words.
template <typename F>
Status Guarded(F&& call) {
  try {
    return call();
  } catch (const std::exception& error) {
    return ResourceExhausted(error.what());
  }
}

}  // namespace

ProcessSets::ProcessSets(ProcessSetOptions options, MembershipPointer world,
                         Control* control, Failures* failures)
    : options_(std::move(options)),
      world_(std::move(world)),
      control_(control),
      failures_(failures),
      retired_waits_(world_->members().ranks.size()) {
  Register({0, kWorldNumber, world_->members().ranks, world_});
}

// --- the table --------------------------------------------------------------

Status ProcessSets::CheckNew(const std::vector<int>& ranks) const {
  const int size = world_->members().size;
  if (ranks.empty()) {
    return InvalidArgument("a process set needs at least one rank");
  }
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] < 0 || ranks[i] >= size) {
      return InvalidArgument(
          StrCat("the ranks of a process set must be in 0 to ", size - 1,
                 ". Received: rank ", ranks[i]));
    }
    if (i > 0 && ranks[i] <= ranks[i - 1]) {
      return InvalidArgument(
          StrCat("the ranks of a process set must be ascending and differ. "
                 "Received: rank ",
                 ranks[i], " after rank ", ranks[i - 1]));
    }
  }
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [id, set] : sets_) {
    if (set.ranks == ranks) {
      return InvalidArgument(StrCat("there is a process set of ", ListOf(ranks),
                                    " already: process set ", id));
    }
  }
  return Status::Ok();
}

const ProcessSets::Set* ProcessSets::At(int64_t handle) const {
  const auto at = sets_.find(IdOf(handle));
  return at == sets_.end() || at->second.handle != handle ? nullptr
                                                          : &at->second;
}

Status ProcessSets::NoSuchSet(int64_t handle) const {
  const int32_t id = IdOf(handle);
  return InvalidArgument(StrCat(
      "there is no process set ", id,
      sets_.count(id) > 0 ? " any more: it was removed, and another has its id"
                          : ""));
}

Status ProcessSets::CheckOld(int64_t handle) const {
  if (handle == 0) {
    return InvalidArgument(
        "process set 0 holds all ranks and cannot be removed");
  }
  std::lock_guard<std::mutex> lock(mutex_);
  return At(handle) != nullptr ? Status::Ok() : NoSuchSet(handle);
}

Status ProcessSets::Info(int64_t handle, int32_t* size, int32_t* place) const {
  const int rank = world_->members().rank;
  std::lock_guard<std::mutex> lock(mutex_);
  const Set* const set = At(handle);
  if (set == nullptr) return NoSuchSet(handle);
  const std::vector<int>& ranks = set->ranks;
  const auto mine = std::lower_bound(ranks.begin(), ranks.end(), rank);
  const bool included = mine != ranks.end() && *mine == rank;
  *size = static_cast<int32_t>(ranks.size());
  *place = included ? static_cast<int32_t>(mine - ranks.begin()) : -1;
  return Status::Ok();
}

Status ProcessSets::Find(int64_t handle, MembershipPointer* out) const {
  if (handle == 0) {
    // Lives as long as this table: not to be counted.
    *out = MembershipPointer(MembershipPointer(), world_.get());
    return Status::Ok();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const Set* const set = At(handle);
  if (set == nullptr) return NoSuchSet(handle);
  *out = set->membership;
  if (*out != nullptr) return Status::Ok();
  return InvalidArgument(StrCat("rank ", world_->members().rank,
                                " is not in process set ", IdOf(handle), " (",
                                ListOf(set->ranks), ")"));
}

std::vector<ProcessSets::MembershipPointer> ProcessSets::Memberships() const {
  std::vector<MembershipPointer> mine;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const auto& [id, set] : sets_) {
      if (id != 0 && set.membership != nullptr) mine.push_back(set.membership);
    }
    mine.insert(mine.end(), stuck_.begin(), stuck_.end());
  }
  mine.push_back(world_);
  return mine;
}

int64_t ProcessSets::NextHandle() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return free_handles_.empty() ? static_cast<int64_t>(sets_.size())
                               : free_handles_.front() + kHandleStep;
}

void ProcessSets::Register(Set set) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (!free_handles_.empty()) free_handles_.pop_front();
  const int32_t id = IdOf(set.handle);
  sets_.emplace(id, std::move(set));
}

void ProcessSets::Unregister(int64_t handle) {
  Set set;  // freed without the lock
  std::lock_guard<std::mutex> lock(mutex_);
  set = std::move(sets_[IdOf(handle)]);
  sets_.erase(IdOf(handle));
  free_handles_.push_back(handle);
}

// --- adding -----------------------------------------------------------------

Status ProcessSets::Add(const std::vector<int>& ranks, int64_t* handle) {
  std::unique_ptr<Operation> operation =
      Operation::Own(kAddProcessSet, {ranks.begin(), ranks.end()},
                     [this, &ranks, handle](DataPlane* plane) {
                       return RunAdd(plane, ranks, handle);
                     });
  // A rank that is wrong comes all the same: others may be right, and wait.
  const Status fits = CheckNew(ranks);
  if (!fits.ok()) operation->fault = fits.message();
  const Status added = world_->group().Run(&operation);
  return fits.ok() ? added : fits;
}

Status ProcessSets::RunAdd(DataPlane* plane, const std::vector<int>& ranks,
                           int64_t* handle) {
  // Again, since another thread may have added it; on all ranks alike.
  TFR_RETURN_IF_ERROR(CheckNew(ranks));
  const uint64_t number = next_number_++;
  const int64_t next = NextHandle();
  MembershipPointer membership;
  const Status formed = Form(plane, SubsetOf(world_->members(), ranks),
                             IdOf(next), number, &membership);
  if (!formed.ok()) {
    if (control_ != nullptr) control_->RemoveGroup(number);
    return formed;
  }
  Register({next, number, ranks, std::move(membership)});
  *handle = next;
  return Status::Ok();
}

// Less than what ranks that have met wait for those that have not.
double ProcessSets::MeetSeconds() const {
  const double limit = options_.group.fail_after_s / 2;
  return limit > 0 ? std::min(limit, options_.start_timeout_s)
                   : options_.start_timeout_s;
}

Status ProcessSets::Form(DataPlane* plane, const GroupMembers& members,
                         int32_t id, uint64_t number,
                         MembershipPointer* membership) {
  Subset subset(&options_.plan, &members, number);
  std::string offer;
  const Status offered = members.included()
                             ? Guarded([&] { return subset.Offer(&offer); })
                             : Status::Ok();
  std::vector<std::string> words;
  TFR_RETURN_IF_ERROR(TellAll(plane, offered, offer, &words));

  const auto meet = [&]() -> Status {
    if (!members.included()) {
      // Rank 0 decides for sets that it is not a member of.
      control_->AddGroup(
          std::make_shared<ControlGroup>(number, members, nullptr));
      return Status::Ok();
    }
    std::vector<std::string> offers;
    for (const int rank : members.ranks) {
      offers.push_back(words[static_cast<size_t>(rank)]);
    }
    TFR_RETURN_IF_ERROR(subset.Meet(offers, Deadline::After(MeetSeconds()),
                                    [this] { return failures_->aborted(); }));
    GroupOptions group = options_.group;
    group.number = number;
    *membership = std::make_shared<Membership>(
        members, std::move(subset.local), std::move(subset.data),
        options_.faults.Of(id), failures_, group);
    return Membership::Start(*membership, control_);
  };
  return TellAll(plane, Guarded(meet), "", &words);
}

// --- removing ---------------------------------------------------------------

Status ProcessSets::Remove(int64_t handle) {
  TFR_RETURN_IF_ERROR(CheckOld(handle));
  std::unique_ptr<Operation> operation = Operation::Own(
      kRemoveProcessSet, {handle},
      [this, handle](DataPlane* plane) { return RunRemove(plane, handle); });
  return world_->group().Run(&operation);
}

Status ProcessSets::RunRemove(DataPlane* plane, int64_t handle) {
  // Again, since another thread may have removed it; on all ranks alike.
  TFR_RETURN_IF_ERROR(CheckOld(handle));
  const int32_t id = IdOf(handle);
  MembershipPointer mine;
  uint64_t number = 0;
  {
    std::lock_guard<std::mutex> lock(mutex_);
    mine = sets_[id].membership;
    number = sets_[id].number;
  }
  const Status gone =
      FailedPrecondition(StrCat("process set ", id, " is being removed"));
  const bool idle = mine == nullptr || mine->group().CloseIfIdle(gone);
  std::string all;
  TFR_RETURN_IF_ERROR(
      GatherSmall(plane, std::string(1, idle ? kGood : kBad), &all));
  std::set<int> busy;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank] == kBad) busy.insert(static_cast<int>(rank));
  }
  if (!busy.empty()) {
    if (mine != nullptr && idle) mine->group().Reopen();
    return FailedPrecondition(
        StrCat("process set ", id,
               " cannot be removed: collectives of it are pending on ",
               RankList(busy)));
  }
  Unregister(handle);
  if (control_ != nullptr) control_->RemoveGroup(number);
  if (mine == nullptr) return Status::Ok();
  mine->group().Close(gone);
  uint64_t executed = 0;
  const Status stopped =
      mine->group().Stop(Deadline::After(kEndSeconds), &executed);
  if (stopped.ok()) {
    Retire(mine);
  } else {
    Keep(mine);
  }
  return stopped;
}

// --- all of them ------------------------------------------------------------

void ProcessSets::Retire(const MembershipPointer& membership) {
  tfr_stats others = {};
  AddStats(&others);
  std::lock_guard<std::mutex> lock(mutex_);
  membership->AddStats(&retired_);
  membership->AddWaits(retired_waits_.data());
  retired_.staging_bytes_peak =
      std::max(retired_.staging_bytes_peak,
               retired_.staging_bytes + others.staging_bytes);
  retired_.staging_bytes = 0;
}

void ProcessSets::Keep(const MembershipPointer& membership) {
  std::lock_guard<std::mutex> lock(mutex_);
  stuck_.push_back(membership);
}

void ProcessSets::AddStats(tfr_stats* stats) const {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    *stats = retired_;
  }
  for (const MembershipPointer& one : Memberships()) one->AddStats(stats);
  stats->staging_bytes_peak =
      std::max(stats->staging_bytes_peak, stats->staging_bytes);
}

void ProcessSets::AddWaits(uint64_t* ns) const {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    for (const uint64_t waited : retired_waits_) *ns++ += waited;
    ns -= retired_waits_.size();
  }
  for (const MembershipPointer& one : Memberships()) one->AddWaits(ns);
}

void ProcessSets::CloseAll() {
  // Another thread may have held the lock when the process was forked; then
  // nobody will ever release it, and the sets' descriptors stay open.
  const std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) return world_->CloseAll();
  for (const auto& [id, set] : sets_) {
    if (set.membership != nullptr) set.membership->CloseAll();
  }
}

}  // namespace tfring
