// A job whose ranks are threads of one process: each has a world of its own,
// and they meet through a real store, memory and sockets.
#ifndef TFRING_TESTS_ENGINE_JOB_H_
#define TFRING_TESTS_ENGINE_JOB_H_

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "custom_ops/core/tfring.h"

namespace tfring_test {

struct JobOptions {
  int size = 2;
  std::vector<std::string> hosts;  // per rank; empty = all on one
  bool shared_memory = true;
  double warn_after_s = 0;
  double fail_after_s = 60;
  double start_timeout_s = 20;
  uint64_t chunk_bytes = 0;
  int32_t host_connections = 0;
  int32_t host_leaders = 0;
  int32_t host_algorithm = TFR_HOSTS_AUTO;
  int depth = 0;
  int copy_threads = 0;
  int64_t direct_bytes = -1;
  std::string faults;
  std::string cudart_library;  // see gpu_job.h
  std::string nccl_library;
  int32_t gpu_data = TFR_GPU_AUTO;
  std::vector<int32_t> gpu_data_of;  // per rank; empty = gpu_data
  bool gpu_hosts_by_tcp = false;
};

inline tfr_config ConfigOf(const JobOptions& options, int rank,
                           const std::string& store) {
  tfr_config config = {};
  config.rank = rank;
  config.size = options.size;
  config.host = options.hosts.empty()
                    ? "here"
                    : options.hosts[static_cast<size_t>(rank)].c_str();
  config.store = store.c_str();
  config.secret = "secret of the test";
  config.session = "test";
  config.faults = options.faults.c_str();
  config.start_timeout_s = options.start_timeout_s;
  config.warn_after_s = options.warn_after_s;
  config.fail_after_s = options.fail_after_s;
  config.chunk_bytes = options.chunk_bytes;
  config.shared_memory = options.shared_memory ? 1 : 0;
  config.spin_us = -1;
  config.host_connections = options.host_connections;
  config.host_leaders = options.host_leaders;
  config.host_algorithm = options.host_algorithm;
  config.depth = options.depth;
  config.copy_threads = options.copy_threads;
  config.direct_bytes = options.direct_bytes;
  config.cudart_library = options.cudart_library.c_str();
  config.nccl_library = options.nccl_library.c_str();
  config.gpu_data = options.gpu_data_of.empty()
                        ? options.gpu_data
                        : options.gpu_data_of[static_cast<size_t>(rank)];
  config.gpu_hosts_by_tcp = options.gpu_hosts_by_tcp ? 1 : 0;
  return config;
}

// Runs `body(rank, world)` on a thread per rank and shuts the worlds down.
inline void RunJob(const JobOptions& options,
                   const std::function<void(int, tfr_world*)>& body) {
  tfr_store_server* server = nullptr;
  int32_t port = 0;
  tfr_error error = {};
  ASSERT_EQ(tfr_store_serve("127.0.0.1", 0, "secret of the test", &server,
                            &port, &error),
            TFR_OK);
  const std::string store = "127.0.0.1:" + std::to_string(port);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank) {
    threads.emplace_back([&, rank] {
      const tfr_config config = ConfigOf(options, rank, store);
      tfr_world* world = nullptr;
      tfr_error failed = {};
      const int code = tfr_world_create(&config, &world, &failed);
      EXPECT_EQ(std::string(failed.text), std::string());
      if (code != TFR_OK) return;
      body(rank, world);
      tfr_world_shutdown(world);
    });
  }
  for (std::thread& thread : threads) thread.join();
  tfr_store_server_close(server);
}

// The threads of a job pass it together: then nobody is late to what follows,
// and a short limit on waiting concerns only what the test is about.
class Meeting {
 public:
  explicit Meeting(int size) : missing_(size) {}
  void Pass() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) complete_.notify_all();
    complete_.wait(lock, [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable complete_;
  int missing_;
};

// One tensor's description, with its dims kept alive.
struct Tensor {
  std::vector<int64_t> dims;
  int32_t dtype;
  const void* input;
  void* output;
};

struct Call {
  std::string name = "t";
  int32_t kind = TFR_ALLREDUCE;
  int32_t reduce_op = TFR_SUM;
  int32_t root = 0;
  int64_t process_set = 0;
  double prescale = 1.0;
  double postscale = 1.0;
  int32_t wire_dtype = 0;
  std::vector<Tensor> tensors;
  std::vector<int64_t> splits;  // empty = null
  int64_t* counts = nullptr;
  const char* fault = nullptr;
  tfr_allocate allocate = nullptr;
  tfr_done done = nullptr;
  void* user = nullptr;
  int32_t patience = TFR_HAND_OVER;
  int32_t device = 0;
  void* stream = nullptr;

  // Valid while this call lives; calls f(request).
  template <typename F>
  int With(F&& f) const {
    std::vector<tfr_tensor> list;
    for (const Tensor& tensor : tensors) {
      list.push_back({tensor.input, tensor.output, tensor.dims.data(),
                      static_cast<int32_t>(tensor.dims.size()), tensor.dtype});
    }
    tfr_request request = {};
    request.name = name.c_str();
    request.kind = kind;
    request.reduce_op = reduce_op;
    request.root = root;
    request.process_set = process_set;
    request.prescale = prescale;
    request.postscale = postscale;
    request.wire_dtype = wire_dtype;
    request.tensor_count = static_cast<int32_t>(list.size());
    request.tensors = list.data();
    request.splits = splits.empty() ? nullptr : splits.data();
    request.counts = counts;
    request.fault = fault;
    request.allocate = allocate;
    request.done = done;
    request.user = user;
    request.patience = patience;
    request.device = device;
    request.stream = stream;
    return f(request);
  }
  int Run(tfr_world* world, tfr_error* error = nullptr) const {
    return With(
        [&](const tfr_request& r) { return tfr_run(world, &r, error); });
  }
  int Submit(tfr_world* world, tfr_error* error = nullptr) const {
    return With(
        [&](const tfr_request& r) { return tfr_submit(world, &r, error); });
  }
};

}  // namespace tfring_test

#endif  // TFRING_TESTS_ENGINE_JOB_H_
