#include "custom_ops/core/rendezvous/bootstrap.h"

#include <unistd.h>

#include <algorithm>
#include <set>
#include <sstream>
#include <utility>

#include "custom_ops/core/common/hash.h"
#include "custom_ops/core/common/processors.h"
#include "custom_ops/core/rendezvous/connect.h"
#include "custom_ops/core/rendezvous/identity.h"
#include "custom_ops/core/rendezvous/store_client.h"

namespace tfring {
namespace {

// Per pair of hosts, and at least one per leader.
constexpr int32_t kConnections = 2;
// A processor each; more leaders than that only take turns.
constexpr int64_t kLeaders = 8;

// What a rank tells all others about itself.
struct Card {
  std::string key;
  std::string name;
  int port = 0;
  uint64_t chunk_bytes = 0;
  bool shared_memory = true;
  LinkOptions links;
  int64_t processors = 1;          // of its host
  Processors mine;                 // where the rank may run
  std::vector<std::string> hosts;  // numeric addresses

  std::string Encode() const {
    std::string text = StrCat(
        key, "\n", name, "\n", port, " ", chunk_bytes, " ",
        shared_memory ? 1 : 0, " ", links.connections, " ", links.leaders, " ",
        links.algorithm, " ", processors, " ", mine.Encode(), "\n");
    for (const std::string& host : hosts) text += host + "\n";
    return text;
  }

  static Card Decode(const std::string& text) {
    Card card;
    std::istringstream lines(text);
    std::string numbers;
    std::string mine;
    std::getline(lines, card.key);
    std::getline(lines, card.name);
    std::getline(lines, numbers);
    std::istringstream(numbers) >> card.port >> card.chunk_bytes >>
        card.shared_memory >> card.links.connections >> card.links.leaders >>
        card.links.algorithm >> card.processors >> mine;
    card.mine = Processors::Decode(mine);
    for (std::string host; std::getline(lines, host);) {
      card.hosts.push_back(host);
    }
    return card;
  }

  std::vector<std::string> Addresses() const {
    return AddressesOf(hosts, port);
  }
};

class Bootstrapper {
 public:
  Bootstrapper(const BootstrapOptions& options, Bootstrapped* out)
      : options_(options),
        out_(*out),
        deadline_(Deadline::After(options.start_timeout_s)) {}

  Status Run() {
    if (options_.size > 1) {
      TFR_RETURN_IF_ERROR(StoreClient::Connect(
          options_.store, options_.secret, options_.start_timeout_s, &store_));
    }
    TFR_RETURN_IF_ERROR(ExchangeCards());
    ComputeMembers();
    TFR_RETURN_IF_ERROR(JoinLocalMemory());
    if (options_.size == 1) return Status::Ok();
    TFR_RETURN_IF_ERROR(Connect());
    std::vector<std::string> ignored;
    return Meet("ready", "", &ignored);
  }

 private:
  std::string Key(const std::string& name) const {
    return options_.session + "/" + name;
  }

  double Left() const {
    return static_cast<double>(deadline_.RemainingNs()) * 1e-9;
  }

  // Puts this rank's value and waits for all ranks'.
  Status Meet(const std::string& what, const std::string& mine,
              std::vector<std::string>* all) {
    TFR_RETURN_IF_ERROR(
        store_->Set(Key(StrCat(what, "/", options_.rank)), mine));
    std::vector<int32_t> missing;
    const Status met =
        store_->Gather(Key(what), options_.size, Left(), all, &missing);
    if (met.code() != TFR_DEADLINE_EXCEEDED) return met;
    const std::set<int> ranks(missing.begin(), missing.end());
    return DeadlineExceeded(
        StrCat("rank ", options_.rank, " waited ", options_.start_timeout_s,
               " s for ", RankList(ranks), " of ", options_.size,
               " to start; did every process call tfring.init()? "
               "--start-timeout (TFRING_START_TIMEOUT) allows more time"));
  }

  // Ranks that were told different things would wait for each other in vain.
  Status ClaimRank() {
    const std::string mine = std::to_string(options_.size);
    bool first = false;
    TFR_RETURN_IF_ERROR(
        store_->SetOnce(Key("size"), mine.data(), mine.size(), &first));
    std::string size;
    TFR_RETURN_IF_ERROR(store_->Get(Key("size"), 0, &size));
    if (size != mine) {
      return InvalidArgument(StrCat(
          "rank ", options_.rank, " was told that the job has ", mine,
          " ranks, another rank ", size, "; TFRING_SIZE must be equal on all"));
    }
    const std::string key = Key(StrCat("claim/", options_.rank));
    TFR_RETURN_IF_ERROR(store_->SetOnce(key, "", 0, &first));
    if (first) return Status::Ok();
    return InvalidArgument(
        StrCat("two processes of this job were told to be rank ", options_.rank,
               "; TFRING_RANK must differ"));
  }

  Status ExchangeCards() {
    Card card;
    card.name = options_.host.empty() ? MachineName() : options_.host;
    card.key = HostKey(card.name);
    card.chunk_bytes = options_.memory.chunk_bytes;
    card.shared_memory = options_.shared_memory;
    card.links = options_.links;
    if (card.links.connections == 0) card.links.connections = kConnections;
    card.processors = std::max(sysconf(_SC_NPROCESSORS_ONLN), 1L);
    card.mine = Processors::OfThisThread();
    if (options_.size == 1) {
      cards_ = {card};
      return Status::Ok();
    }
    TFR_RETURN_IF_ERROR(ClaimRank());
    TFR_RETURN_IF_ERROR(Listener::Open("", 0, &listener_));
    card.port = listener_.port();
    TFR_RETURN_IF_ERROR(FindAddresses(&card.hosts));
    std::vector<std::string> all;
    TFR_RETURN_IF_ERROR(Meet("card", card.Encode(), &all));
    for (const std::string& text : all) cards_.push_back(Card::Decode(text));
    return Status::Ok();
  }

  // Where others can reach this rank; the way to the store first, since the
  // store is known to be reachable by all.
  Status FindAddresses(std::vector<std::string>* hosts) {
    if (options_.interfaces.empty()) hosts->push_back(store_->LocalHost());
    std::vector<std::string> found;
    TFR_RETURN_IF_ERROR(InterfaceAddresses(options_.interfaces, &found));
    for (const std::string& host : found) {
      if (std::find(hosts->begin(), hosts->end(), host) == hosts->end()) {
        hosts->push_back(host);
      }
    }
    return Status::Ok();
  }

  void ComputeMembers() {
    std::vector<std::string> keys;
    std::vector<std::string> names;
    for (const Card& card : cards_) {
      keys.push_back(card.key);
      names.push_back(card.name);
    }
    out_.identity = MembersOf(options_.rank, keys, names);
    if (!cards_.front().shared_memory) {
      for (size_t r = 0; r < keys.size(); ++r) keys[r] += StrCat("|", r);
    }
    out_.members = MembersOf(options_.rank, keys, names);
    out_.members.most_leaders = MostLeaders();
  }

  // Every rank comes to the same answer.
  int MostLeaders() const {
    if (cards_.front().links.leaders > 0) return cards_.front().links.leaders;
    int64_t most = kLeaders;
    for (const Card& card : cards_) most = std::min(most, card.processors);
    return static_cast<int>(most);
  }

  Status JoinLocalMemory() {
    const GroupMembers& members = out_.members;
    MemoryOptions& memory = out_.later.memory;
    memory = options_.memory;
    memory.chunk_bytes = cards_.front().chunk_bytes;
    std::vector<Processors> here;
    for (const int rank : out_.identity.here()) {
      here.push_back(cards_[static_cast<size_t>(rank)].mine);
    }
    FitToProcessors(here, static_cast<size_t>(out_.identity.local_rank()),
                    &memory);
    const std::string key = Key(StrCat("memory/", members.host));
    if (members.leads()) {
      MemoryPlace place;
      TFR_RETURN_IF_ERROR(
          CreateGroupMemory(members, memory, &out_.local, &place));
      return members.here().size() == 1 ? Status::Ok()
                                        : store_->Set(key, place.Encode());
    }
    std::string place;
    TFR_RETURN_IF_ERROR(Annotate(
        store_->Get(key, Left(), &place),
        StrCat("rank ", members.here().front(), " offers no shared memory")));
    return OpenGroupMemory(members, memory, MemoryPlace::Decode(place),
                           &out_.local);
  }

  Status Connect() {
    const GroupMembers& members = out_.members;
    ConnectOptions connect;
    connect.secret = out_.later.secret = options_.secret;
    connect.session = out_.later.session =
        HashBytes(options_.session.data(), options_.session.size());
    for (const Card& card : cards_) out_.later.hosts.push_back(card.hosts);
    out_.later.links = cards_.front().links;
    if (out_.later.links.connections < 1 ||
        out_.later.links.connections > kMostConnections) {
      return Unavailable(StrCat(
          "rank 0 asks for ", out_.later.links.connections,
          " connections between two hosts, not 1 to ", kMostConnections));
    }
    connect.rank = static_cast<uint32_t>(options_.rank);
    connect.deadline = deadline_;
    out_.control.resize(static_cast<size_t>(members.size));
    if (members.exchanges()) {
      out_.data.resize(static_cast<size_t>(members.host_count()));
      for (HostSockets& sockets : out_.data)
        sockets.resize(LanesOf(members, out_.later.links));
    }
    TFR_RETURN_IF_ERROR(ConnectOut(connect));
    return AcceptOthers(connect);
  }

  // To rank 0, and, as a leader, to its like on the hosts before this one.
  Status ConnectOut(const ConnectOptions& connect) {
    const GroupMembers& members = out_.members;
    if (members.rank > 0) {
      TFR_RETURN_IF_ERROR(ConnectToRank(connect, {kPurposeControl, 0},
                                        cards_[0].Addresses(),
                                        &out_.control[0]));
    }
    if (out_.data.empty()) return Status::Ok();
    for (int h = 0; h < members.host; ++h) {
      const int leader = members.PartnerOn(h);
      TFR_RETURN_IF_ERROR(
          ConnectLanes(connect, static_cast<uint32_t>(leader),
                       cards_[static_cast<size_t>(leader)].Addresses(),
                       &out_.data[static_cast<size_t>(h)]));
    }
    return Status::Ok();
  }

  Status AcceptOthers(const ConnectOptions& connect) {
    const GroupMembers& members = out_.members;
    std::set<Expected> expected;
    for (int r = 1; members.rank == 0 && r < members.size; ++r) {
      expected.insert({kPurposeControl, static_cast<uint32_t>(r)});
    }
    for (int h = members.host + 1;
         !out_.data.empty() && h < members.host_count(); ++h) {
      const int leader = members.PartnerOn(h);
      ExpectLanes(static_cast<uint32_t>(leader), out_.data.front().size(),
                  &expected);
    }
    std::vector<Accepted> accepted;
    TFR_RETURN_IF_ERROR(
        AcceptRanks(connect, &listener_, std::move(expected), &accepted));
    for (Accepted& one : accepted) {
      const auto rank = static_cast<size_t>(one.who.rank);
      if (one.who.purpose == kPurposeControl) {
        out_.control[rank] = std::move(one.socket);
      } else {
        const auto host = static_cast<size_t>(members.host_of[rank]);
        out_.data[host][one.who.channel] = std::move(one.socket);
      }
    }
    return Status::Ok();
  }

  const BootstrapOptions& options_;
  Bootstrapped& out_;
  const Deadline deadline_;
  std::unique_ptr<StoreClient> store_;
  Listener listener_;
  std::vector<Card> cards_;
};

}  // namespace

size_t LanesOf(const GroupMembers& members, const LinkOptions& links) {
  const int32_t each = links.connections / members.leaders();
  return static_cast<size_t>(std::max(each, 1));
}

Status Bootstrap(const BootstrapOptions& options, Bootstrapped* out) {
  return Bootstrapper(options, out).Run();
}

}  // namespace tfring
