// Small collectives of ranks on one host, in one round: the data travels with
// the announcement.
//
// Every rank has a row of numbered places in the shared memory. It writes what
// it has, description and data, into its next place, and looks at the places of
// the same number in the rows of others. Once all hold the same collective,
// each rank has all it needs and waits for nobody: no lock, no log, no order
// between these and the collectives of the log.
//
// A place is answered once: filled, or refused. A number of which one place is
// refused, or holds another collective, is void for all, since all see the same
// places; whoever filled one then announces in the usual way (agreement.h). A
// rank that announces anything in the usual way, or waits for something that it
// has announced so, refuses what others have filled: so nobody waits here for a
// rank that waits there.
//
// Cost: each rank writes one cache line and reads one of each other.
#ifndef TFRING_CORE_SCHEDULE_EXPRESS_H_
#define TFRING_CORE_SCHEDULE_EXPRESS_H_

#include <atomic>
#include <cstdint>

namespace tfring {

class Express {
 public:
  static constexpr uint64_t kPayloadBytes = 2048;

  static uint64_t Bytes(int local_size);

  // `memory` was zeroed before any rank used it.
  Express(char* memory, int local_size, int local_rank);

  // --- One caller at a time: the group's mutex is held ----------------------

  // Where to put the data for the next number; null: not now.
  char* Begin();
  // Fills the place. `key` stands for the collective, described in full.
  // Whoever wants to know next which others sleep needs a FullFence() first.
  void Fill(uint64_t key, int64_t now_ns);
  // Refuses all that others have filled and this rank has not answered. True if
  // there was something: then others must be woken.
  bool Refuse();
  // This rank needs the places of its number no longer.
  void Release();

  // --- The executor ---------------------------------------------------------

  bool waiting() const { return waiting_; }
  enum class Votes { kOpen, kAll, kVoid };
  Votes Count();
  // Whether another rank has filled a place that this one has not answered.
  bool IsCalled() const;

  // Of the number that this rank has filled.
  bool HasFilled(int rank) const;
  const char* payload(int rank) const;
  int64_t filled_ns(int rank) const;

 private:
  // Numbers that are in use at the same time.
  static constexpr uint64_t kPlaces = 4;

  struct Place;
  struct Answers;

  Place& PlaceOf(int rank, uint64_t number) const;
  bool OthersHaveFilled(uint64_t number) const;
  bool IsFree(uint64_t number);

  Answers* const answers_;
  Place* const places_;
  const int local_size_;
  const int local_rank_;
  std::atomic<uint64_t> next_{0};  // number
  bool waiting_ = false;
  uint64_t number_ = 0;  // that this rank has filled
  uint64_t key_ = 0;
  int counted_ = 0;        // ranks that have filled it with the same
  uint64_t needless_ = 0;  // all others need no numbers below
};

}  // namespace tfring

#endif  // TFRING_CORE_SCHEDULE_EXPRESS_H_
