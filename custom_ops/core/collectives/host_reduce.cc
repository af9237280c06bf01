#include "custom_ops/core/collectives/host_reduce.h"

#include <algorithm>
#include <utility>

#include "custom_ops/core/transport/mesh.h"

namespace tfring {
namespace {

// What is sent as padding after a piece that leaves from a tensor.
constexpr std::array<char, kStreamAlignment> kZeros = {};

void Append(const char* begin, uint64_t bytes, std::vector<iovec>* list) {
  if (bytes == 0) return;
  if (!list->empty()) {
    iovec& last = list->back();
    if (static_cast<const char*>(last.iov_base) + last.iov_len == begin) {
      last.iov_len += bytes;
      return;
    }
  }
  list->push_back({const_cast<char*>(begin), bytes});
}

// Calls f(part) for the parts that travel in a move.
template <typename F>
void ForMove(const HostMove& move, int hosts, F&& f) {
  for (int i = 0; i < move.count; ++i) f((move.first + i) % hosts);
}

HostPlan PlanOf(const HostReduceOptions& options, const GroupMembers& members) {
  return options.spreads ? PlanAllreduce(options.algorithm, members.host,
                                         members.host_count())
                         : PlanReduce(options.algorithm, members.host,
                                      members.host_count());
}

}  // namespace

HostAlgorithm AlgorithmFor(const DataPlane& plane, uint64_t bytes) {
  if (!plane.joined().empty()) return HostAlgorithm::kDirect;
  switch (plane.host_algorithm()) {
    case TFR_HOSTS_DIRECT:
      return HostAlgorithm::kDirect;
    case TFR_HOSTS_HALVING_DOUBLING:
      return HostAlgorithm::kHalvingDoubling;
    case TFR_HOSTS_RING:
      return HostAlgorithm::kRing;
    default:
      return ChooseHostAlgorithm(bytes, plane.members().host_count());
  }
}

bool SendsInputs(const DataPlane& plane, HostAlgorithm algorithm) {
  const std::vector<std::vector<int>>& hosts = plane.members().on_host;
  return algorithm == HostAlgorithm::kDirect &&
         std::all_of(hosts.begin(), hosts.end(),
                     [](const auto& places) { return places.size() == 1; });
}

HostReducer::HostReducer(DataPlane* plane, const Operation& operation,
                         Reduction* reduction, HostReduceOptions options)
    : plane_(plane),
      operation_(operation),
      options_(std::move(options)),
      members_(plane->members()),
      reduction_(reduction),
      alone_(plane->local().local_size() == 1),
      active_(reduction->source_count() > 0),
      plan_(PlanOf(options_, members_)),
      flights_(plane->local().depth()) {
  reduce_steps_ = static_cast<size_t>(
      std::count_if(plan_.begin(), plan_.end(),
                    [](const HostStep& step) { return step.reduces; }));
}

Status HostReducer::Run() {
  return plane_->RunOverHosts(
      options_.steps,
      {[this](uint64_t step, uint64_t chunk) { return CopyIn(step, chunk); },
       [this](uint64_t, uint64_t chunk) { return ReducePartials(chunk); },
       [this](uint64_t, uint64_t chunk) { return Post(chunk); }},
      {[this](uint64_t, uint64_t chunk) { return Finish(chunk); },
       [this](uint64_t, uint64_t chunk) { return CopyOut(chunk); }});
}

// --- inside this host -------------------------------------------------------

Status HostReducer::CopyIn(uint64_t step, uint64_t chunk) {
  Flight& flight = FlightOf(chunk);
  flight.chunk = chunk;
  flight.division.Clear();
  options_.divide(step, &flight.division);
  flight.step = step;
  const std::vector<HostPiece>& pieces = flight.division.pieces();
  uint64_t bytes = 0;
  for (const HostPiece& piece : pieces) {
    if (IsStaged(piece)) bytes += piece.bytes;
  }
  char* slot = plane_->local().slot(plane_->local().local_rank(), chunk);
  plane_->StoreForOthers(bytes, [&](Stores stores) {
    for (const HostPiece& piece : pieces) {
      if (!IsStaged(piece)) continue;
      StageElements(operation_, operation_.tensors[piece.tensor], piece.input,
                    piece.count, slot + piece.at, stores);
    }
  });
  plane_->Advance(&RankState::staged, chunk + 1);
  return Status::Ok();
}

// A rank that is alone reduces its input itself, unless that must be rounded.
bool HostReducer::IsStaged(const HostPiece& piece) const {
  if (piece.input == nullptr) return false;
  return !alone_ || operation_.tensors[piece.tensor].is_narrowed();
}

// Whether partial results are the very elements, so that none need be made.
bool HostReducer::IsStraight(const HostPiece& piece) const {
  if (!alone_ || !active_) return false;
  const ReduceSpec spec = reduction_->SpecOf(piece.tensor);
  switch (reduction_->PartialsOf(piece.tensor)) {
    case Reduction::Partials::kRounded:
      return false;
    case Reduction::Partials::kAccumulators:
      return spec.prescale == 1.0 &&
             (spec.dtype == TFR_FLOAT32 || spec.dtype == TFR_FLOAT64);
    default:
      return true;
  }
}

bool HostReducer::LandsInOutput(const HostPiece& piece) const {
  return alone_ && piece.output != nullptr && !reduction_->Rounds(piece.tensor);
}

Status HostReducer::ReducePartials(uint64_t chunk) {
  TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::staged, chunk + 1));
  const auto rank = static_cast<uint64_t>(plane_->local().local_rank());
  const auto ranks = static_cast<uint64_t>(plane_->local().local_size());
  char* partial = plane_->local().partial(chunk);
  for (const HostPiece& piece : FlightOf(chunk).division.pieces()) {
    const uint64_t first = piece.count * rank / ranks;
    const uint64_t last = piece.count * (rank + 1) / ranks;
    if (first == last || !active_ || IsStraight(piece)) continue;
    const uint64_t at = piece.at + first * (piece.bytes / piece.count);
    reduction_->ReducePartial(
        piece.tensor,
        IsStaged(piece) || !alone_
            ? reduction_->SourcesAt(chunk, at)
            : reduction_->SourcesAt(chunk, at, piece.input),
        reduction_->source_count(),
        partial + piece.packed +
            first * reduction_->partial_bytes(piece.tensor),
        last - first);
  }
  plane_->Advance(&RankState::reduced, chunk + 1);
  return Status::Ok();
}

Status HostReducer::CopyOut(uint64_t chunk) {
  TFR_RETURN_IF_ERROR(plane_->AwaitExchanged(FlightOf(chunk).step, chunk));
  const char* result = plane_->local().result(chunk);
  for (const HostPiece& piece : FlightOf(chunk).division.pieces()) {
    if (piece.output == nullptr || LandsInOutput(piece)) continue;
    reduction_->Deliver(piece.tensor, result + piece.at, piece.output,
                        piece.count);
  }
  plane_->Advance(&RankState::taken, chunk + 1);
  return Status::Ok();
}

// --- between hosts: the leader's part ---------------------------------------

Status HostReducer::Post(uint64_t chunk) {
  if (!plane_->Exchanges(FlightOf(chunk).step)) return Status::Ok();
  TFR_RETURN_IF_ERROR(plane_->AwaitAll(&RankState::reduced, chunk + 1));
  Flight& flight = FlightOf(chunk);
  flight.under_way = true;
  flight.next = 0;
  flight.sends = 0;
  flight.held.assign(static_cast<size_t>(members_.host_count()), nullptr);
  PostReceives(&flight);
  PostSends(&flight);
  Advance(&flight);  // nothing may be due
  TFR_RETURN_IF_ERROR(plane_->PokeHosts());
  AdvanceFlights();
  return Status::Ok();
}

Status HostReducer::Finish(uint64_t chunk) {
  if (!plane_->Exchanges(FlightOf(chunk).step)) return Status::Ok();
  Flight& flight = FlightOf(chunk);
  while (!DoneFlight(flight)) {
    TFR_RETURN_IF_ERROR(plane_->AwaitHosts());
    AdvanceFlights();
  }
  flight.under_way = false;
  plane_->Advance(&RankState::exchanged, chunk + 1);
  return Status::Ok();
}

bool HostReducer::DoneFlight(const Flight& flight) const {
  return flight.next == plan_.size() && flight.sends == 0;
}

// Of the chunks that this rank exchanges, so many at most are under way.
size_t HostReducer::MemoryPlaceOf(const Flight& flight) const {
  const size_t leaders = plane_->leaders();
  return flight.step / leaders % ((flights_.size() + leaders - 1) / leaders);
}

// All at once: what comes early finds its place.
void HostReducer::PostReceives(Flight* flight) {
  flight->receives.assign(plan_.size(), 0);
  flight->received.clear();
  uint64_t memory = 0;
  for (size_t s = 0; s < reduce_steps_; ++s) {
    for (const HostMove& move : plan_[s].receives) {
      ForMove(move, members_.host_count(), [&](int part) {
        const Range packed = flight->division.PackedOf(part);
        memory += packed.end - packed.begin;
      });
    }
  }
  char* place = plane_->mesh()->Memory(MemoryPlaceOf(*flight), memory);
  std::vector<iovec> list;
  for (size_t s = 0; s < plan_.size(); ++s) {
    for (const HostMove& move : plan_[s].receives) {
      list.clear();
      char* const begin = place;
      if (plan_[s].reduces) flight->received.push_back(begin);
      ForMove(move, members_.host_count(), [&](int part) {
        if (!plan_[s].reduces) {
          AppendResult(*flight, part, dump_.data(), &list);
          return;
        }
        const Range packed = flight->division.PackedOf(part);
        Append(place, packed.end - packed.begin, &list);
        place += packed.end - packed.begin;
      });
      if (list.empty()) continue;
      ++flight->receives[s];
      plane_->ReceiveFrom(move.peer, flight->chunk, s, list,
                          &flight->receives[s]);
    }
  }
}

// Those of the step that the flight is at.
void HostReducer::PostSends(Flight* flight) {
  const HostStep& step = plan_[flight->next];
  std::vector<iovec> list;
  for (const HostMove& move : step.sends) {
    list.clear();
    ForMove(move, members_.host_count(), [&](int part) {
      if (step.reduces) {
        AppendHeld(*flight, part, &list);
      } else {
        AppendResult(*flight, part, const_cast<char*>(kZeros.data()), &list);
      }
    });
    if (list.empty()) continue;
    ++flight->sends;
    plane_->SendTo(move.peer, flight->chunk, flight->next, list,
                   &flight->sends);
  }
}

void HostReducer::AdvanceFlights() {
  for (Flight& flight : flights_) {
    if (flight.under_way) Advance(&flight);
  }
}

void HostReducer::Advance(Flight* flight) {
  while (flight->next < plan_.size() && flight->receives[flight->next] == 0) {
    if (plan_[flight->next].reduces) Complete(flight);
    if (++flight->next < plan_.size()) PostSends(flight);
  }
}

// Adds what has arrived in the flight's step to what this host holds.
void HostReducer::Complete(Flight* flight) {
  size_t first = 0;  // of the step's receives among all
  for (size_t s = 0; s < flight->next; ++s) first += plan_[s].receives.size();
  const std::vector<HostMove>& receives = plan_[flight->next].receives;
  // All receives of a step bring the same parts.
  std::vector<const char*> places(receives.size());
  for (size_t r = 0; r < receives.size(); ++r) {
    places[r] = flight->received[first + r];
  }
  ForMove(receives.front(), members_.host_count(), [&](int part) {
    arrived_.assign(static_cast<size_t>(members_.host_count()), nullptr);
    for (size_t r = 0; r < receives.size(); ++r) {
      arrived_[static_cast<size_t>(receives[r].peer)] = places[r];
    }
    Add(flight, part);
    const Range packed = flight->division.PackedOf(part);
    for (const char*& place : places) place += packed.end - packed.begin;
  });
}

// `arrived_` holds what came for the part.
void HostReducer::Add(Flight* flight, int part) {
  const bool last = part == members_.host && flight->next + 1 == reduce_steps_;
  const auto found =
      std::find_if(arrived_.begin(), arrived_.end(),
                   [](const char* place) { return place != nullptr; });
  char* const out = const_cast<char*>(*found);  // this class' own memory
  const uint64_t begin = flight->division.PackedOf(part).begin;
  flight->division.ForPart(part, [&](const HostPiece& piece) {
    sources_.clear();
    for (int h = 0; h < members_.host_count(); ++h) {
      if (!HostIsActive(h)) continue;
      const char* place = arrived_[static_cast<size_t>(h)];
      if (h == members_.host) {
        sources_.push_back(HeldOf(*flight, part, piece));
      } else if (place != nullptr) {
        sources_.push_back(place + (piece.packed - begin));
      }
    }
    AddPiece(*flight, piece, begin, last, out);
  });
  if (!last) flight->held[static_cast<size_t>(part)] = out;
}

void HostReducer::AddPiece(const Flight& flight, const HostPiece& piece,
                           uint64_t begin, bool last, char* out) {
  if (sources_.empty()) return;
  const int count = static_cast<int>(sources_.size());
  if (!last) {
    reduction_->MergePartials(piece.tensor, sources_.data(), count,
                              out + (piece.packed - begin), piece.count);
    return;
  }
  char* const result = LandsInOutput(piece)
                           ? piece.output
                           : plane_->local().result(flight.chunk) + piece.at;
  reduction_->ReduceFinal(piece.tensor, sources_.data(), count, result,
                          piece.count);
}

const void* HostReducer::HeldOf(const Flight& flight, int part,
                                const HostPiece& piece) const {
  const char* held = flight.held[static_cast<size_t>(part)];
  if (held != nullptr) {
    return held + (piece.packed - flight.division.PackedOf(part).begin);
  }
  if (IsStraight(piece)) return piece.input;
  return plane_->local().partial(flight.chunk) + piece.packed;
}

void HostReducer::AppendHeld(const Flight& flight, int part,
                             std::vector<iovec>* list) {
  const char* held = flight.held[static_cast<size_t>(part)];
  const Range packed = flight.division.PackedOf(part);
  if (held != nullptr) {
    Append(held, packed.end - packed.begin, list);
    return;
  }
  const char* partial = plane_->local().partial(flight.chunk);
  flight.division.ForPart(part, [&](const HostPiece& piece) {
    const uint64_t bytes =
        piece.count * reduction_->partial_bytes(piece.tensor);
    if (!IsStraight(piece)) {
      Append(partial + piece.packed, AlignStream(bytes), list);
      return;
    }
    Append(piece.input, bytes, list);
    Append(kZeros.data(), AlignStream(bytes) - bytes, list);
  });
}

void HostReducer::AppendResult(const Flight& flight, int part, char* padding,
                               std::vector<iovec>* list) {
  char* result = plane_->local().result(flight.chunk);
  flight.division.ForPart(part, [&](const HostPiece& piece) {
    const uint64_t padded = AlignStream(piece.bytes);
    if (!LandsInOutput(piece)) {
      Append(result + piece.at, padded, list);
      return;
    }
    Append(piece.output, piece.bytes, list);
    Append(padding, padded - piece.bytes, list);
  });
}

// Whether it has contributions: not all of its ranks have joined.
bool HostReducer::HostIsActive(int host) const {
  if (plane_->joined().empty()) return true;
  const std::vector<int>& places = members_.on_host[static_cast<size_t>(host)];
  return std::any_of(places.begin(), places.end(),
                     [this](int place) { return plane_->IsActive(place); });
}

}  // namespace tfring
