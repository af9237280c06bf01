// A C face of oneCCL's C++ collectives on host memory, for `oneccl.py`, which
// has it compiled where oneCCL's headers are. Returns 0, or 1 after saying why.
#include <cstdio>
#include <cstring>
#include <exception>
#include <memory>
#include <oneapi/ccl.hpp>
#include <utility>
#include <vector>

namespace {

struct Rank {
  ccl::shared_ptr_class<ccl::kvs> store;
  std::unique_ptr<ccl::communicator> world;
};

// One per process, as a ctypes library has no other place to keep it.
Rank& Me() {
  static Rank me;
  return me;
}

template <typename Call>
int Try(Call&& call) {
  try {
    std::forward<Call>(call)();
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "oneCCL: %s\n", error.what());
    return 1;
  }
}

ccl::datatype Type(int number) { return static_cast<ccl::datatype>(number); }

}  // namespace

extern "C" {

int bench_address_bytes() { return ccl::kvs::address_max_size; }

int bench_version() {
  const auto version = ccl::get_library_version();
  return static_cast<int>(version.major * 100 + version.minor);
}

int bench_serve(char* address) {
  return Try([&] {
    ccl::init();
    Me().store = ccl::create_main_kvs();
    const auto found = Me().store->get_address();
    std::memcpy(address, found.data(), found.size());
  });
}

int bench_join(int rank, int size, const char* address) {
  return Try([&] {
    ccl::init();
    if (!Me().store) {
      ccl::kvs::address_type at;
      std::memcpy(at.data(), address, at.size());
      Me().store = ccl::create_kvs(at);
    }
    Me().world = std::make_unique<ccl::communicator>(
        ccl::create_communicator(size, rank, Me().store));
  });
}

int bench_allreduce(const void* in, void* out, size_t count, int type) {
  return Try([&] {
    ccl::allreduce(in, out, count, Type(type), ccl::reduction::sum, *Me().world)
        .wait();
  });
}

int bench_allgather(const void* in, void* out, size_t count, int type) {
  return Try([&] {
    const std::vector<size_t> counts(Me().world->size(), count);
    ccl::allgatherv(in, count, out, counts, Type(type), *Me().world).wait();
  });
}

int bench_broadcast(const void*, void* out, size_t count, int type) {
  return Try(
      [&] { ccl::broadcast(out, count, Type(type), 0, *Me().world).wait(); });
}

int bench_reducescatter(const void* in, void* out, size_t count, int type) {
  return Try([&] {
    ccl::reduce_scatter(in, out, count, Type(type), ccl::reduction::sum,
                        *Me().world)
        .wait();
  });
}

int bench_alltoall(const void* in, void* out, size_t count, int type) {
  return Try(
      [&] { ccl::alltoall(in, out, count, Type(type), *Me().world).wait(); });
}

}  // extern "C"
