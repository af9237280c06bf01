#include "custom_ops/core/schedule/faults.h"

#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <sstream>
#include <thread>

namespace tfring {
namespace {

bool ParseNumber(const std::string& text, int64_t* number) {
  char* end = nullptr;
  *number = std::strtoll(text.c_str(), &end, 10);
  return !text.empty() && *end == '\0' && *number >= 0;
}

}  // namespace

Status Faults::Parse(const std::string& text, int rank, Faults* out) {
  std::istringstream list(text);
  std::string item;
  while (std::getline(list, item, ';')) {
    if (item.find_first_not_of(' ') == std::string::npos) continue;
    Fault fault;
    TFR_RETURN_IF_ERROR(ParseOne(item, &fault));
    if (fault.rank == rank) out->faults_.push_back(fault);
  }
  return Status::Ok();
}

Status Faults::ParseOne(const std::string& text, Fault* fault) {
  std::istringstream words(text);
  std::string word;
  while (words >> word) {
    const size_t equals = word.find('=');
    const std::string key = word.substr(0, equals);
    std::string value =
        equals == std::string::npos ? "" : word.substr(equals + 1);
    bool good = true;
    if (key == "rank") {
      good = ParseNumber(value, &fault->rank);
    } else if (key == "set") {
      good = ParseNumber(value, &fault->set);
    } else if (key == "collective") {
      good = ParseNumber(value, &fault->collective);
    } else if (key == "chunk") {
      good = ParseNumber(value, &fault->chunk);
    } else if (key == "do") {
      const std::string action = value.substr(0, value.find(':'));
      if (action == "late") fault->chunk = kSubmission;
      if (action == "late" || action == "delay") {
        good =
            value.size() > action.size() &&
            ParseNumber(value.substr(action.size() + 1), &fault->milliseconds);
      } else {
        good = value == "kill" || value == "stop";
      }
      fault->action = action;
    } else {
      good = false;
    }
    if (!good) {
      return InvalidArgument(
          StrCat("cannot read \"", word, "\" in faults \"", text, "\""));
    }
  }
  if (fault->rank < 0 || fault->collective < 0 || fault->action.empty()) {
    return InvalidArgument(
        StrCat("faults need rank=, collective= and do=. Received: ", text));
  }
  return Status::Ok();
}

Faults Faults::Of(int set) const {
  Faults some;
  for (const Fault& fault : faults_) {
    if (fault.set == set) some.faults_.push_back(fault);
  }
  return some;
}

void Faults::Fire(uint64_t collective, int64_t chunk) {
  for (const Fault& fault : faults_) {
    if (static_cast<uint64_t>(fault.collective) != collective ||
        fault.chunk != chunk) {
      continue;
    }
    if (fault.action == "kill") raise(SIGKILL);
    if (fault.action == "stop") raise(SIGSTOP);
    std::this_thread::sleep_for(std::chrono::milliseconds(fault.milliseconds));
  }
}

}  // namespace tfring
