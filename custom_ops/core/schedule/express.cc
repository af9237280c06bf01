#include "custom_ops/core/schedule/express.h"

#include <algorithm>

namespace tfring {

// `filled` is the place's number plus one.
struct alignas(64) Express::Place {
  std::atomic<uint64_t> filled;
  uint64_t key;
  int64_t now_ns;
  char payload[kPayloadBytes];
};

// Each on a line of its own: the first hardly ever changes and is read often,
// the second the other way round.
struct Express::Answers {
  // Numbers below are answered: those whose places are not filled are refused.
  alignas(64) std::atomic<uint64_t> refused;
  // This rank reads no place of a number below.
  alignas(64) std::atomic<uint64_t> done;
};

uint64_t Express::Bytes(int local_size) {
  return (sizeof(Answers) + kPlaces * sizeof(Place)) *
         static_cast<uint64_t>(local_size);
}

Express::Express(char* memory, int local_size, int local_rank)
    : answers_(reinterpret_cast<Answers*>(memory)),
      places_(reinterpret_cast<Place*>(
          memory + sizeof(Answers) * static_cast<uint64_t>(local_size))),
      local_size_(local_size),
      local_rank_(local_rank) {}

Express::Place& Express::PlaceOf(int rank, uint64_t number) const {
  return places_[static_cast<uint64_t>(rank) * kPlaces + number % kPlaces];
}

// Whether no rank reads the place's former content any more.
bool Express::IsFree(uint64_t number) {
  if (number < needless_ + kPlaces) return true;
  uint64_t least = number;
  for (int p = 0; p < local_size_; ++p) {
    if (p == local_rank_) continue;
    least = std::min(least, answers_[p].done.load(std::memory_order_acquire));
  }
  needless_ = least;
  return number < needless_ + kPlaces;
}

char* Express::Begin() {
  const uint64_t number = next_.load(std::memory_order_relaxed);
  for (int p = 0; p < local_size_; ++p) {
    if (p == local_rank_) continue;
    if (answers_[p].refused.load(std::memory_order_acquire) > number) {
      return nullptr;
    }
  }
  return IsFree(number) ? PlaceOf(local_rank_, number).payload : nullptr;
}

void Express::Fill(uint64_t key, int64_t now_ns) {
  number_ = next_.load(std::memory_order_relaxed);
  next_.store(number_ + 1, std::memory_order_relaxed);
  key_ = key;
  counted_ = 0;
  waiting_ = true;
  Place& place = PlaceOf(local_rank_, number_);
  place.key = key;
  place.now_ns = now_ns;
  place.filled.store(number_ + 1, std::memory_order_release);
}

// Whoever fills a number has filled or refused all before, and keeps its place
// until this rank needs it no longer: so it is still there to be seen.
bool Express::OthersHaveFilled(uint64_t number) const {
  for (int p = 0; p < local_size_; ++p) {
    if (p == local_rank_) continue;
    if (PlaceOf(p, number).filled.load(std::memory_order_seq_cst) ==
        number + 1) {
      return true;
    }
  }
  return false;
}

bool Express::Refuse() {
  const uint64_t next = next_.load(std::memory_order_relaxed);
  uint64_t newest = next;
  while (OthersHaveFilled(newest)) ++newest;
  if (newest == next) return false;
  next_.store(newest, std::memory_order_relaxed);
  Answers& mine = answers_[local_rank_];
  mine.refused.store(newest, std::memory_order_seq_cst);
  if (!waiting_) mine.done.store(newest, std::memory_order_release);
  return true;
}

void Express::Release() {
  waiting_ = false;
  const uint64_t next = next_.load(std::memory_order_relaxed);
  answers_[local_rank_].done.store(next, std::memory_order_release);
  // Soon to be written; nobody reads it now.
  __builtin_prefetch(&PlaceOf(local_rank_, next), 1);
}

Express::Votes Express::Count() {
  for (; counted_ < local_size_; ++counted_) {
    if (counted_ == local_rank_) continue;
    const Place& place = PlaceOf(counted_, number_);
    const std::atomic<uint64_t>& refused = answers_[counted_].refused;
    uint64_t filled = place.filled.load(std::memory_order_seq_cst);
    if (filled <= number_) {
      if (refused.load(std::memory_order_seq_cst) <= number_) {
        return Votes::kOpen;
      }
      // It may have filled this one and refused a later one since.
      filled = place.filled.load(std::memory_order_seq_cst);
    }
    if (filled != number_ + 1 || place.key != key_) return Votes::kVoid;
  }
  // Whoever fills a number needs none before it.
  needless_ = std::max(needless_, number_);
  return Votes::kAll;
}

bool Express::IsCalled() const {
  return OthersHaveFilled(next_.load(std::memory_order_relaxed));
}

bool Express::HasFilled(int rank) const {
  return PlaceOf(rank, number_).filled.load(std::memory_order_seq_cst) >
         number_;
}

const char* Express::payload(int rank) const {
  return PlaceOf(rank, number_).payload;
}

int64_t Express::filled_ns(int rank) const {
  return PlaceOf(rank, number_).now_ns;
}

}  // namespace tfring
