#include "custom_ops/core/schedule/announcer.h"

namespace tfring {

Status Announcer::Announce(const Announcement& announcement, bool* logged) {
  Arrival arrival;
  TFR_RETURN_IF_ERROR(
      agreement_->Arrive(announcement.uid, announcement.digest, one_host(),
                         &arrival, {members_->rank, announcement.now_ns}));
  *logged = arrival.host_complete && one_host();
  if (arrival.host_complete && !one_host()) {
    control_->HostReady(number_,
                        {announcement.uid, announcement.digest, arrival.alike},
                        arrival.joined);
  }
  return Status::Ok();
}

Status Announcer::Join(int64_t now_ns, bool* logged) {
  Joining joining;
  TFR_RETURN_IF_ERROR(agreement_->Join(static_cast<uint64_t>(members_->rank),
                                       one_host(), &joining, now_ns));
  *logged = one_host();
  if (one_host()) return Status::Ok();
  for (const Completion& completion : joining.completions) {
    control_->HostReady(number_, completion, /*joined=*/true);
  }
  if (joining.host_complete) control_->HostJoined(number_);
  return Status::Ok();
}

}  // namespace tfring
