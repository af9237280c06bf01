#include "arguments.h"

#include <functional>
#include <map>
#include <stdexcept>
#include <string>

namespace simulator {
namespace {

using Setter = std::function<void(double)>;

template <typename T>
Setter To(T* field) {
  return [field](double value) { *field = static_cast<T>(value); };
}

std::map<std::string, Setter> SettersOf(Arguments* a) {
  return {
      {"hosts", To(&a->costs.hosts)},
      {"ranks_per_host", To(&a->costs.ranks_per_host)},
      {"leaders", To(&a->costs.leaders)},
      {"link_gbit", To(&a->costs.link_gbit)},
      {"payload_share", To(&a->costs.payload_share)},
      {"latency_us", To(&a->costs.latency_us)},
      {"message_us", To(&a->costs.message_us)},
      {"control_send_us", To(&a->costs.control_send_us)},
      {"control_handle_us", To(&a->costs.control_handle_us)},
      {"announce_us", To(&a->costs.announce_us)},
      {"wake_us", To(&a->costs.wake_us)},
      {"rank_memory", To(&a->costs.rank_memory)},
      {"host_memory", To(&a->costs.host_memory)},
      {"socket_rate", To(&a->costs.socket_rate)},
      {"partial_growth", To(&a->costs.partial_growth)},
      {"chunk_bytes", To(&a->costs.chunk_bytes)},
      {"chunks_under_way", To(&a->costs.chunks_under_way)},
      {"bytes", To(&a->model.gradient_bytes)},
      {"bucket_bytes", To(&a->model.bucket_bytes)},
      {"forward_ms", To(&a->model.forward_ms)},
      {"backward_ms", To(&a->model.backward_ms)},
      {"overlap", To(&a->step.overlap)},
      {"steps", To(&a->step.steps)},
      {"skew_ms", To(&a->step.skew_ms)},
      {"seed", To(&a->step.seed)},
  };
}

}  // namespace

Arguments Arguments::Parse(int count, char** texts) {
  Arguments arguments;
  const std::map<std::string, Setter> setters = SettersOf(&arguments);
  for (int i = 0; i < count; ++i) {
    const std::string text = texts[i];
    const size_t equals = text.find('=');
    const auto at = setters.find(text.substr(0, equals));
    if (equals == std::string::npos || at == setters.end()) {
      throw std::invalid_argument(
          "KEY=VALUE with a known KEY is wanted. "
          "Received: " +
          text);
    }
    at->second(std::stod(text.substr(equals + 1)));
  }
  return arguments;
}

}  // namespace simulator
