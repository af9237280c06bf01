#include "custom_ops/core/schedule/hub.h"

#include <iterator>

#include "custom_ops/core/common/status.h"

namespace tfring {
namespace {

// A rank whose engine lives answers within microseconds.
constexpr double kAnswerSeconds = 1.0;
// Old inquiries are forgotten beyond this many.
constexpr size_t kRememberedInquiries = 1000;

}  // namespace

std::optional<LogEntry> Hub::HostReady(int host, uint64_t uid, uint64_t digest,
                                       bool alike, bool joined, int last) {
  std::lock_guard<std::mutex> lock(mutex_);
  Ready& ready = ready_[uid];
  if (ready.hosts.empty()) ready.digest = digest;
  ready.alike = ready.alike && alike && ready.digest == digest;
  ready.joined = ready.joined || joined;
  ready.hosts.insert(host);
  ready.last = last;
  const std::optional<LogEntry> entry = EntryOf(uid, ready);
  if (entry.has_value()) ready_.erase(uid);
  return entry;
}

std::vector<LogEntry> Hub::HostJoined(int host, int place) {
  std::lock_guard<std::mutex> lock(mutex_);
  joined_hosts_.insert(host);
  std::vector<LogEntry> entries;
  for (auto it = ready_.begin(); it != ready_.end();) {
    it->second.last = place;
    const std::optional<LogEntry> entry = EntryOf(it->first, it->second);
    if (entry.has_value()) entries.push_back(*entry);
    it = entry.has_value() ? ready_.erase(it) : std::next(it);
  }
  if (static_cast<int>(joined_hosts_.size()) == members_->host_count() &&
      !closed_) {
    joined_hosts_.clear();
    ++entries_;
    entries.push_back({static_cast<uint64_t>(place), Verdict::kJoin, place});
  }
  return entries;
}

std::optional<LogEntry> Hub::EntryOf(uint64_t uid, const Ready& ready) {
  // A host whose ranks have all joined has announced nothing.
  const size_t hosts = ready.hosts.size() + joined_hosts_.size();
  if (static_cast<int>(hosts) != members_->host_count() || closed_) {
    return std::nullopt;
  }
  ++entries_;
  return LogEntry{
      uid, VerdictOf(ready.alike, ready.joined || !joined_hosts_.empty()),
      ready.last};
}

uint64_t Hub::Close() {
  std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  return entries_;
}

bool Hub::StartInquiry(uint64_t uid, const std::string& title, bool fatal,
                       bool is_join, bool runs) {
  std::lock_guard<std::mutex> lock(mutex_);
  if (inquiries_.size() > kRememberedInquiries) inquiries_.clear();
  const auto [it, is_new] = inquiries_.try_emplace(uid);
  Inquiry& inquiry = it->second;
  const bool again = is_join && !inquiry.open;  // others have gone on since
  // It may have waited for ranks, and not get on now that it runs.
  const bool same = inquiry.runs == runs && !fatal;
  if (!is_new && !again && (inquiry.fatal || same)) return false;
  inquiry = Inquiry();
  inquiry.title = title;
  inquiry.fatal = fatal;
  inquiry.is_join = is_join;
  inquiry.runs = runs;
  inquiry.open = true;
  inquiry.deadline = Deadline::After(kAnswerSeconds);
  inquiry.silent.insert(members_->ranks.begin(), members_->ranks.end());
  return true;
}

void Hub::Answer(uint64_t uid, int place, bool has_it) {
  const int rank = members_->RankAt(place);
  std::lock_guard<std::mutex> lock(mutex_);
  const auto it = inquiries_.find(uid);
  if (it == inquiries_.end()) return;
  it->second.silent.erase(rank);
  if (!has_it) it->second.missing.insert(rank);
}

std::vector<StallReport> Hub::FinishedInquiries() {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<StallReport> reports;
  for (auto& [uid, inquiry] : inquiries_) {
    if (!inquiry.open) continue;
    if (!inquiry.silent.empty() && !inquiry.deadline.expired()) continue;
    inquiry.open = false;
    const std::string text = ReportOf(inquiry);
    if (!text.empty()) reports.push_back({text, inquiry.fatal});
  }
  return reports;
}

std::string Hub::ReportOf(const Inquiry& inquiry) const {
  if (inquiry.runs) {
    std::string silent;
    for (const int rank : inquiry.silent) {
      const int place = members_->PlaceOf(rank);
      const int host = members_->host_of[static_cast<size_t>(place)];
      silent += StrCat(silent.empty() ? "" : ", ", "rank ", rank, " (host ",
                       members_->host_names[static_cast<size_t>(host)], ")");
    }
    return StrCat(inquiry.title, "; ",
                  silent.empty()               ? "all ranks answer, though"
                  : inquiry.silent.size() == 1 ? silent + " does not answer"
                                               : silent + " do not answer");
  }
  std::set<int> absent = inquiry.missing;
  absent.insert(inquiry.silent.begin(), inquiry.silent.end());
  if (!absent.empty()) {
    return StrCat(inquiry.title, " waits for ", RankList(absent));
  }
  if (!inquiry.fatal || inquiry.is_join) return "";
  return StrCat(inquiry.title,
                " waits although every rank has submitted it; do ranks have "
                "more than ",
                Agreement::kWindow,
                " collectives pending, in different orders?");
}

Deadline Hub::NextInquiry() {
  std::lock_guard<std::mutex> lock(mutex_);
  Deadline next = Deadline::Never();
  for (const auto& [uid, inquiry] : inquiries_) {
    if (inquiry.open) next = Deadline::Earlier(next, inquiry.deadline);
  }
  return next;
}

}  // namespace tfring
