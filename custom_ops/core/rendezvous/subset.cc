#include "custom_ops/core/rendezvous/subset.h"

#include <set>
#include <sstream>
#include <utility>

#include "custom_ops/core/common/hash.h"
#include "custom_ops/core/rendezvous/group_memory.h"

namespace tfring {
namespace {

// What a member offers: where it listens, and the memory it has made.
std::string EncodeOffer(int port, const MemoryPlace& place) {
  return StrCat(port, " ", place.Encode());
}

void DecodeOffer(const std::string& offer, int* port, MemoryPlace* place) {
  std::istringstream(offer) >> *port;
  *place = MemoryPlace::Decode(offer.substr(offer.find(' ') + 1));
}

}  // namespace

Status Subset::Offer(std::string* offer) {
  MemoryPlace place;
  if (members_->leads()) {
    TFR_RETURN_IF_ERROR(
        CreateGroupMemory(*members_, plan_->memory, &local, &place));
  }
  if (members_->exchanges())
    TFR_RETURN_IF_ERROR(Listener::Open("", 0, &listener_));
  *offer = EncodeOffer(members_->exchanges() ? listener_.port() : 0, place);
  return Status::Ok();
}

Status Subset::Meet(const std::vector<std::string>& offers, Deadline deadline,
                    std::function<bool()> cancelled) {
  if (!members_->leads()) {
    int port = 0;
    MemoryPlace place;
    DecodeOffer(offers[static_cast<size_t>(members_->here().front())], &port,
                &place);
    TFR_RETURN_IF_ERROR(
        OpenGroupMemory(*members_, plan_->memory, place, &local));
  }
  if (!members_->exchanges()) return Status::Ok();
  ConnectOptions options;
  options.secret = plan_->secret;
  options.session = HashCombine(plan_->session, number_);
  options.rank = static_cast<uint32_t>(members_->RankAt(members_->rank));
  options.deadline = deadline;
  options.cancelled = std::move(cancelled);
  data.resize(static_cast<size_t>(members_->host_count()));
  for (HostSockets& sockets : data) sockets.resize(lanes());
  TFR_RETURN_IF_ERROR(ConnectHosts(offers, options));
  return AcceptHosts(options);
}

// To the leaders on the hosts before this one.
Status Subset::ConnectHosts(const std::vector<std::string>& offers,
                            const ConnectOptions& options) {
  for (int h = 0; h < members_->host; ++h) {
    const int leader = members_->PartnerOn(h);
    const int rank = members_->RankAt(leader);
    int port = 0;
    MemoryPlace place;
    DecodeOffer(offers[static_cast<size_t>(leader)], &port, &place);
    TFR_RETURN_IF_ERROR(
        ConnectLanes(options, static_cast<uint32_t>(rank),
                     AddressesOf(plan_->hosts[static_cast<size_t>(rank)], port),
                     &data[static_cast<size_t>(h)]));
  }
  return Status::Ok();
}

// From the leaders on the hosts after this one.
Status Subset::AcceptHosts(const ConnectOptions& options) {
  std::set<Expected> expected;
  for (int h = members_->host + 1; h < members_->host_count(); ++h) {
    const int leader = members_->PartnerOn(h);
    ExpectLanes(static_cast<uint32_t>(members_->RankAt(leader)), lanes(),
                &expected);
  }
  std::vector<Accepted> accepted;
  TFR_RETURN_IF_ERROR(
      AcceptRanks(options, &listener_, std::move(expected), &accepted));
  for (Accepted& one : accepted) {
    const int place = members_->PlaceOf(static_cast<int>(one.who.rank));
    const int host = members_->host_of[static_cast<size_t>(place)];
    data[static_cast<size_t>(host)][one.who.channel] = std::move(one.socket);
  }
  return Status::Ok();
}

}  // namespace tfring
