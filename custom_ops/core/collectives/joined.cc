#include "custom_ops/core/collectives/joined.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <set>
#include <string>

#include "custom_ops/core/collectives/gather.h"
#include "custom_ops/core/collectives/mismatch.h"

namespace tfring {
namespace {

// What each rank says first.
struct Word {
  uint64_t active = 0;
  uint64_t faulty = 0;
  uint64_t description_bytes = 0;
};

Status TellWords(DataPlane* plane, const Word& mine, std::vector<Word>* words) {
  std::string all;
  TFR_RETURN_IF_ERROR(GatherSmall(
      plane, std::string(reinterpret_cast<const char*>(&mine), sizeof(mine)),
      &all));
  words->resize(all.size() / sizeof(Word));
  std::memcpy(words->data(), all.data(), all.size());
  return Status::Ok();
}

// Gives `*text` of the rank at place `from` to all.
Status Spread(DataPlane* plane, int from, uint64_t bytes, std::string* text) {
  text->resize(bytes);
  GatherJob job;
  job.bytes.assign(static_cast<size_t>(plane->members().size), 0);
  job.bytes[static_cast<size_t>(from)] = bytes;
  job.read = [&](uint64_t begin, uint64_t end, char* to, Stores stores) {
    CopyBytes(to, text->data() + begin, end - begin, stores);
  };
  job.write = [&](int, uint64_t begin, uint64_t end, const char* at) {
    std::memcpy(text->data() + begin, at, end - begin);
  };
  return Gather(plane, job);
}

Status OnlyAllreduce(const DataPlane& plane, const Operation& operation) {
  std::set<int> ranks;
  for (const int place : plane.joined()) {
    ranks.insert(plane.members().RankAt(place));
  }
  return FailedPrecondition(
      StrCat(operation.Title(), ": ", RankList(ranks),
             ranks.size() == 1 ? " has" : " have",
             " joined, and until all ranks have, only allreduce can be used"));
}

}  // namespace

Status RunWithJoined(DataPlane* plane, Operation* operation, bool alike,
                     const std::function<Status(Operation*)>& run) {
  std::string description;
  if (operation != nullptr) description = operation->EncodeReduction();
  Word mine;
  mine.active = operation != nullptr ? 1 : 0;
  mine.faulty = operation != nullptr && !operation->fault.empty() ? 1 : 0;
  mine.description_bytes = description.size();
  std::vector<Word> words;
  TFR_RETURN_IF_ERROR(TellWords(plane, mine, &words));

  std::set<int> joined;
  bool faulty = false;
  int first = -1;
  for (int place = 0; place < plane->members().size; ++place) {
    const Word& word = words[static_cast<size_t>(place)];
    faulty = faulty || word.faulty != 0;
    if (word.active == 0) joined.insert(place);
    if (word.active != 0 && first < 0) first = place;
  }
  if (first < 0) return Internal("no rank has the collective that runs");
  std::unique_ptr<Operation> stand_in;
  if (!alike || faulty) {
    if (operation == nullptr) {
      stand_in = Operation::Join();
      operation = stand_in.get();
    }
    return Mismatch(plane, *operation);
  }
  plane->SetJoined(std::move(joined));
  const uint64_t bytes = words[static_cast<size_t>(first)].description_bytes;
  if (bytes == 0) {  // nothing that joined ranks take part in
    return operation == nullptr ? Status::Ok()
                                : OnlyAllreduce(*plane, *operation);
  }
  TFR_RETURN_IF_ERROR(Spread(plane, first, bytes, &description));
  if (operation != nullptr) return run(operation);
  stand_in = Operation::DecodeReduction(description);
  return run(stand_in.get());
}

}  // namespace tfring
