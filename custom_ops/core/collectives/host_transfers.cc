#include "custom_ops/core/collectives/host_transfers.h"

#include <algorithm>
#include <utility>

namespace tfring {
namespace {

bool IsEmpty(const std::vector<iovec>& parts) {
  return std::all_of(parts.begin(), parts.end(),
                     [](const iovec& part) { return part.iov_len == 0; });
}

}  // namespace

void HostTransfers::Receive(int host, uint64_t chunk,
                            std::vector<iovec> parts) {
  if (IsEmpty(parts)) return;
  ++LeftOf(chunk);
  plane_->ReceiveFrom(host, chunk, 0, std::move(parts), &LeftOf(chunk));
}

void HostTransfers::Send(int host, uint64_t chunk,
                         const std::vector<iovec>& parts) {
  if (IsEmpty(parts)) return;
  ++LeftOf(chunk);
  plane_->SendTo(host, chunk, 0, parts, &LeftOf(chunk));
}

Status HostTransfers::Await(uint64_t chunk) {
  while (LeftOf(chunk) > 0) TFR_RETURN_IF_ERROR(plane_->AwaitHosts());
  return Status::Ok();
}

}  // namespace tfring
