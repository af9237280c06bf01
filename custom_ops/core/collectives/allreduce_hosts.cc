#include "custom_ops/core/collectives/allreduce_hosts.h"

#include <utility>
#include <vector>

#include "custom_ops/core/collectives/host_reduce.h"

namespace tfring {
namespace {

class HostExchange {
 public:
  HostExchange(DataPlane* plane, AllreduceJob* job)
      : plane_(plane),
        job_(job),
        reducer_(plane, job->operation(), &job->reduction()) {}

  Status ReducePartials(uint64_t step, uint64_t chunk) {
    return reducer_.ReducePartials(Divide(step), chunk);
  }

  // Leader: reduces the part of this host, spreads the result.
  Status Exchange(uint64_t step, uint64_t chunk) {
    if (!plane_->members().leads()) return Status::Ok();
    TFR_RETURN_IF_ERROR(reducer_.ReduceOwn(Divide(step), chunk));
    TFR_RETURN_IF_ERROR(SpreadResult(step, chunk));
    plane_->Advance(&RankState::exchanged, chunk + 1);
    return Status::Ok();
  }

  Status CopyOut(uint64_t step, uint64_t chunk) {
    TFR_RETURN_IF_ERROR(reducer_.AwaitLeader(chunk + 1));
    job_->Deliver(step, chunk);
    return Status::Ok();
  }

 private:
  // The share of host `host` of the step's bytes.
  Range PartOf(uint64_t step, int host) const {
    const Range range = job_->RangeOf(step);
    const auto part = static_cast<uint64_t>(host);
    const auto parts = static_cast<uint64_t>(plane_->members().host_count());
    return {ShareBegin(range.begin, range.end, part, parts),
            ShareBegin(range.begin, range.end, part + 1, parts)};
  }

  HostDivision Divide(uint64_t step) const {
    HostDivision division;
    const uint64_t begin = job_->RangeOf(step).begin;
    for (int h = 0; h < plane_->members().host_count(); ++h) {
      const Range part = PartOf(step, h);
      division.BeginHost();
      job_->stream().ForRange(
          part.begin, part.end,
          [&](size_t t, uint64_t, uint64_t bytes, uint64_t at) {
            const OperationTensor& tensor = job_->operation().tensors[t];
            division.Add(t, at - begin, bytes / tensor.staged_element_bytes,
                         job_->reduction().partial_bytes(t));
          });
    }
    return division;
  }

  Status SpreadResult(uint64_t step, uint64_t chunk) {
    const uint64_t begin = job_->RangeOf(step).begin;
    char* result = plane_->local().result(chunk);
    const auto place = [&](int host) {
      const Range part = PartOf(step, host);
      return iovec{result + (part.begin - begin), part.end - part.begin};
    };
    const int own = plane_->members().host;
    std::vector<Transfer> transfers;
    for (int h = 0; h < plane_->members().host_count(); ++h) {
      if (h != own) transfers.push_back({h, {place(own)}, {place(h)}});
    }
    return plane_->ExchangeWithHosts(std::move(transfers));
  }

  DataPlane* const plane_;
  AllreduceJob* const job_;
  HostReducer reducer_;
};

}  // namespace

Status AllreduceHosts(DataPlane* plane, AllreduceJob* job) {
  HostExchange exchange(plane, job);
  return plane->RunPipeline(job->steps(),
                            {[job](uint64_t step, uint64_t chunk) {
                               return job->CopyIn(step, chunk);
                             },
                             [&](uint64_t step, uint64_t chunk) {
                               return exchange.ReducePartials(step, chunk);
                             },
                             [&](uint64_t step, uint64_t chunk) {
                               return exchange.Exchange(step, chunk);
                             },
                             [&](uint64_t step, uint64_t chunk) {
                               return exchange.CopyOut(step, chunk);
                             }});
}

}  // namespace tfring
