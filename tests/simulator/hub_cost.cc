#include "hub_cost.h"

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/common/clock.h"
#include "custom_ops/core/rendezvous/identity.h"
#include "custom_ops/core/schedule/side_channel.h"

namespace simulator {
namespace {

using tfring::ControlGroup;
using tfring::Deadline;
using tfring::GroupMembers;
using tfring::kWorldNumber;
using tfring::Socket;

constexpr double kSeconds = 30;

void Check(const tfring::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.message());
}

// What a host's leader says, as bytes.
class Leader : public tfring::Control {
 public:
  Leader(const GroupMembers* members, tfring::Failures* failures)
      : Control(members, failures) {}

  std::string Ready(uint64_t uid) {
    said_.clear();
    HostReady(kWorldNumber, {uid, 1, true}, false);
    return said_;
  }

 private:
  void Send(int, const std::string& bytes) override { said_ = bytes; }
  void OnInquiry() override {}
  void OnRankLeft(int) override {}

  std::string said_;
};

int64_t CpuNs(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return int64_t{now.tv_sec} * 1000000000 + now.tv_nsec;
}

// Of all threads but this one: the side channel's.
int64_t OthersCpuNs() {
  return CpuNs(CLOCK_PROCESS_CPUTIME_ID) - CpuNs(CLOCK_THREAD_CPUTIME_ID);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Star {
 public:
  Star(int hosts, int ranks_per_host) : leader_members_(), failures_() {
    std::vector<std::string> names;
    for (int r = 0; r < hosts * ranks_per_host; ++r) {
      names.push_back(std::to_string(r / ranks_per_host));
    }
    members_ = tfring::MembersOf(0, names, names);
    leader_members_.rank = 1;
    std::vector<Socket> sockets = Connect();
    hub_ = std::make_unique<tfring::SideChannel>(&members_, std::move(sockets),
                                                 &failures_);
    hub_->AddGroup(
        std::make_shared<ControlGroup>(kWorldNumber, members_, nullptr));
    Check(hub_->Start());
  }

  // All hosts have a collective, and are told to run it.
  void Agree(uint64_t uid) {
    const std::string ready = Leader(&leader_members_, &failures_).Ready(uid);
    std::string answer(ready.size(), '\0');
    const Deadline deadline = Deadline::After(kSeconds);
    for (int h = 1; h < members_.host_count(); ++h) {
      Check(LeaderOf(h).SendAll(ready.data(), ready.size(), deadline));
    }
    hub_->HostReady(kWorldNumber, {uid, 1, true}, false);
    for (int h = 1; h < members_.host_count(); ++h) {
      Check(LeaderOf(h).RecvAll(answer.data(), answer.size(), deadline));
    }
  }

 private:
  std::vector<Socket> Connect() {
    tfring::Listener listener;
    Check(tfring::Listener::Open("127.0.0.1", 0, &listener));
    const std::string address =
        tfring::JoinHostPort("127.0.0.1", listener.port());
    std::vector<Socket> sockets(static_cast<size_t>(members_.size));
    peers_.resize(sockets.size());
    for (size_t r = 1; r < sockets.size(); ++r) {
      const Deadline deadline = Deadline::After(kSeconds);
      Check(Socket::Connect(address, deadline, &peers_[r]));
      Check(listener.Accept(deadline, &sockets[r]));
    }
    return sockets;
  }
  Socket& LeaderOf(int host) {
    const int place = members_.on_host[static_cast<size_t>(host)].front();
    return peers_[static_cast<size_t>(place)];
  }

  GroupMembers members_;
  GroupMembers leader_members_;
  tfring::Failures failures_;
  std::vector<Socket> peers_;  // closed after rank 0's ends
  std::unique_ptr<tfring::SideChannel> hub_;
};

}  // namespace

HubCost MeasureHub(int hosts, int ranks_per_host, int rounds) {
  Star star(hosts, ranks_per_host);
  star.Agree(0);
  std::vector<double> time;
  const int64_t cpu = OthersCpuNs();
  for (int i = 1; i <= rounds; ++i) {
    const int64_t begin = tfring::NowNs();
    star.Agree(static_cast<uint64_t>(i));
    time.push_back(static_cast<double>(tfring::NowNs() - begin) / 1e3);
  }
  const double processor = static_cast<double>(OthersCpuNs() - cpu) / 1e3;
  return {processor / rounds, Median(time), 2 * (hosts - 1)};
}

}  // namespace simulator
