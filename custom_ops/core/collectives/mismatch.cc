#include "custom_ops/core/collectives/mismatch.h"

#include <cstring>
#include <map>
#include <set>
#include <string>

#include "custom_ops/core/collectives/gather.h"

namespace tfring {
namespace {

constexpr size_t kDescriptionBytes = 512;

}  // namespace

Status Mismatch(DataPlane* plane, const Operation& operation) {
  std::string mine = operation.Describe();
  mine.resize(kDescriptionBytes, '\0');
  std::string all;
  TFR_RETURN_IF_ERROR(GatherSmall(plane, mine, &all));
  std::map<std::string, std::set<int>> senders;
  for (int place = 0; place < plane->members().size; ++place) {
    const char* text =
        all.data() + static_cast<size_t>(place) * kDescriptionBytes;
    senders[std::string(text, strnlen(text, kDescriptionBytes))].insert(
        plane->members().RankAt(place));
  }
  std::string list;
  for (const auto& [description, ranks] : senders) {
    list += StrCat(list.empty() ? "" : "; ", RankList(ranks), " sent ",
                   description);
  }
  return FailedPrecondition(
      StrCat(operation.Title(), ": the ranks do not agree: ", list));
}

}  // namespace tfring
