#include "custom_ops/core/collectives/mismatch.h"

#include <cstring>
#include <map>
#include <set>
#include <string>

#include "custom_ops/core/collectives/gather.h"

namespace tfring {
namespace {

constexpr size_t kDescriptionBytes = 1024;
// What the first byte says about the rest.
constexpr char kFault = 'F';
constexpr char kSent = 'S';

using Senders = std::map<std::string, std::set<int>>;

std::string ListOf(const Senders& senders, const char* verb) {
  std::string list;
  for (const auto& [text, ranks] : senders) {
    list += StrCat(list.empty() ? "" : "; ", RankList(ranks), verb, text);
  }
  return list;
}

}  // namespace

Status Mismatch(DataPlane* plane, const Operation& operation) {
  const bool fault = !operation.fault.empty();
  std::string mine =
      fault ? kFault + operation.fault : kSent + operation.Describe();
  mine.resize(kDescriptionBytes, '\0');
  std::string all;
  TFR_RETURN_IF_ERROR(GatherSmall(plane, mine, &all));
  Senders faults;
  Senders sent;
  for (int place = 0; place < plane->members().size; ++place) {
    const char* text =
        all.data() + static_cast<size_t>(place) * kDescriptionBytes;
    Senders& senders = text[0] == kFault ? faults : sent;
    senders[std::string(text + 1, strnlen(text + 1, kDescriptionBytes - 1))]
        .insert(plane->members().RankAt(place));
  }
  if (!faults.empty()) {
    return InvalidArgument(
        StrCat(operation.Title(), ": ", ListOf(faults, ": ")));
  }
  return FailedPrecondition(StrCat(
      operation.Title(), ": the ranks do not agree: ", ListOf(sent, " sent ")));
}

}  // namespace tfring
