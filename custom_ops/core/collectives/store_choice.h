// Whether a rank stores what others are to read in the cache (plain) or past
// it, to memory (streaming).
//
// To store into a line that another processor has read is cheap where both
// share a cache, and may be dear where they do not: on a virtual machine whose
// two processors move between one cache and two, within seconds, filling a
// chunk of 256 KiB plainly took 20 or 105 us, streaming 15 to 25. Readers took
// 15 us, after streaming 20 to 25. Prefetching lines to be stored changed
// nothing.
//
// So each rank measures where the work is done: its own stores. While it stores
// plainly, a chunk that took kDear times as long as a streaming one lately is
// followed by one that is streaming, and now and then another is. Two such
// pairs in a row, so that an interruption does not count, and it goes on
// streaming. Now and then it then stores plainly until every place has been
// stored again, since lines that were streamed must be fetched first; if the
// last chunk took less than kBack times the streaming one before, it stays
// plain.
//
// Few bytes seem to cost less streaming than they do, since the processor's
// buffers take them in: 32 KiB that others had read took 2.3 us plain and 0.6
// streaming where a cache was shared, but 15 us plain where none was. So
// streaming counts as kLeastCost at least.
//
// Cost where plain is right: one chunk in kPeriodBytes streaming (1/2 slower:
// 1.6%). Where streaming is: kSettleBytes plain in kRarePeriodBytes (7 times
// slower: 5%), and three chunks when that begins. No choice changes a result.
#ifndef TFRING_CORE_COLLECTIVES_STORE_CHOICE_H_
#define TFRING_CORE_COLLECTIVES_STORE_CHOICE_H_

#include <algorithm>
#include <cstdint>

#include "custom_ops/core/common/copy.h"

namespace tfring {

class StoreChoice {
 public:
  static constexpr uint64_t kPeriodBytes = uint64_t{8} << 20;
  static constexpr uint64_t kRarePeriodBytes = uint64_t{256} << 20;
  // What a rank's places hold at most (transport/tuning.h).
  static constexpr uint64_t kSettleBytes = uint64_t{2} << 20;
  // Chunks with less are always plain: their lines are few.
  static constexpr uint64_t kLeastBytes = 32 * 1024;
  static constexpr double kDear = 3;
  static constexpr double kBack = 2;
  static constexpr double kLeastCost = 0.04;  // ns per byte

  // Where nothing is to be measured.
  Stores preferred() const { return preferred_; }

  // For the next chunk, of kLeastBytes or more.
  Stores Next() const { return probes_ ? Other() : preferred_; }

  // It took so long.
  void Stored(Stores stores, uint64_t bytes, int64_t ns) {
    const double cost = static_cast<double>(ns) / static_cast<double>(bytes);
    if (stores == Stores::kPlain) {
      plain_ = cost;
    } else {
      streaming_ = std::max(cost, kLeastCost);
    }
    bytes_ += bytes;
    if (preferred_ == Stores::kPlain) {
      AfterPlain();
    } else {
      AfterStreaming();
    }
  }

 private:
  Stores Other() const {
    return preferred_ == Stores::kPlain ? Stores::kStreaming : Stores::kPlain;
  }

  void AfterPlain() {
    const bool dear = plain_ > kDear * streaming_;
    if (!dear) dear_pairs_ = 0;
    if (!probes_) {
      probes_ = dear || bytes_ >= kPeriodBytes;
      return;
    }
    if (dear && ++dear_pairs_ == 2) Prefer(Stores::kStreaming);
    Rest();
  }

  void AfterStreaming() {
    if (!probes_) {
      probes_ = bytes_ >= kRarePeriodBytes;
      if (probes_) bytes_ = 0;
      return;
    }
    if (bytes_ <= kSettleBytes) return;
    if (plain_ < kBack * streaming_) Prefer(Stores::kPlain);
    Rest();
  }

  void Prefer(Stores stores) {
    preferred_ = stores;
    dear_pairs_ = 0;
  }
  void Rest() {
    probes_ = false;
    bytes_ = 0;
  }

  Stores preferred_ = Stores::kPlain;
  bool probes_ = false;
  int dear_pairs_ = 0;
  uint64_t bytes_ = 0;  // since the last probe, or of this one
  double plain_ = 0;    // ns per byte, the last one's
  double streaming_ = 0;
};

}  // namespace tfring

#endif  // TFRING_CORE_COLLECTIVES_STORE_CHOICE_H_
