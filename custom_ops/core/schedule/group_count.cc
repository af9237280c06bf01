// What a group remembers of the collectives that it has run.
#include <algorithm>

#include "custom_ops/core/schedule/group.h"

namespace tfring {

void Group::Count(const Operation& operation, const Moments& moments,
                  int last) {
  timing_.Count(moments, last);
  // One writer: no other thread's addition can be lost.
  const auto add = [](std::atomic<uint64_t>* sum, uint64_t value) {
    sum->store(sum->load(std::memory_order_relaxed) + value,
               std::memory_order_relaxed);
  };
  add(&stats_.collectives, 1);
  add(&stats_.tensors, operation.tensors.size());
  add(&stats_.payload_bytes, operation.InputBytes());
  add(&stats_.travel_bytes, operation.TravelBytes());
  // A GPU's has yet to end.
  if (operation.device == 0) Record(operation, moments, last);
}

void Group::Landed(Flight* flight, const Status& status) {
  const int64_t now = NowNs();
  timing_.CountFlight(flight->moments, now);
  flight->moments.ended = now;
  Record(*flight->operation, flight->moments, flight->last);
  Finish(flight->operation.get(),
         status.ok() ? status : Blame(*flight->operation, status));
  local_->RingSelf();  // the executor may wait for it
}

void Group::Record(const Operation& operation, const Moments& moments,
                   int last) {
  if (options_.recorder == nullptr || !options_.recorder->on()) return;
  tfr_record record = {};
  operation.name.copy(record.name, sizeof(record.name) - 1);
  record.submitted_ns = moments.submitted;
  record.agreed_ns = std::max(moments.agreed, moments.submitted);
  record.began_ns = moments.began;
  record.ended_ns = moments.ended;
  record.bytes = operation.InputBytes();
  record.travel_bytes = operation.TravelBytes();
  record.group = options_.number;
  record.kind = operation.kind;
  record.tensors = static_cast<int32_t>(operation.tensors.size());
  record.last_rank = last < 0 ? -1 : members_->RankAt(last);
  options_.recorder->Add(record);
}

}  // namespace tfring
