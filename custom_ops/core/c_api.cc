// The C face of worlds and collectives: translates, and nothing else.
#include <cstdio>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/collectives/reduce.h"
#include "custom_ops/core/common/dtype.h"
#include "custom_ops/core/common/status.h"
#include "custom_ops/core/tfring.h"
#include "custom_ops/core/world.h"

#ifndef TFRING_VERSION
#define TFRING_VERSION "unknown"
#endif

struct tfr_world {
  std::unique_ptr<tfring::World> world;
};

namespace {

// Memory can run out, and threads may not start; neither may cross the face.
template <typename F>
int Guarded(tfr_error* error, F&& call) noexcept {
  try {
    return tfring::Export(call(), error);
  } catch (const std::bad_alloc&) {
    return tfring::Export(tfring::ResourceExhausted("out of memory"), error);
  } catch (const std::exception& e) {
    return tfring::Export(tfring::Internal(e.what()), error);
  }
}

// Calls f(memory) with the world's; without a world, CUDA is found by name.
template <typename F>
int WithDeviceMemory(tfr_world* world, tfr_error* error, F&& f) {
  return Guarded(error, [&] {
    if (world != nullptr) return f(&world->world->device_memory());
    tfring::DeviceMemory memory("");
    return f(&memory);
  });
}

}  // namespace

const char* tfr_version(void) { return TFRING_VERSION; }

const char* tfr_build_info(void) {
  static const std::string info = tfring::StrCat(
      "compiler: ", __VERSION__, "\nkernels: ", tfring::ReduceKernelName(),
      "\ntransports: shared memory, TCP");
  return info.c_str();
}

int tfr_world_create(const tfr_config* config, tfr_world** out,
                     tfr_error* error) {
  return Guarded(error, [&] {
    auto handle = std::make_unique<tfr_world>();
    TFR_RETURN_IF_ERROR(tfring::World::Create(*config, &handle->world));
    *out = handle.release();
    return tfring::Status::Ok();
  });
}

void tfr_world_info(const tfr_world* world, tfr_info* info) {
  world->world->Info(info);
}

void tfr_world_hosts(const tfr_world* world, int32_t* hosts) {
  world->world->Hosts(hosts);
}

void tfr_world_stats(const tfr_world* world, tfr_stats* stats) {
  world->world->Stats(stats);
}

void tfr_world_waits(const tfr_world* world, uint64_t* ns) {
  world->world->Waits(ns);
}

int tfr_world_record(tfr_world* world, uint64_t capacity, tfr_error* error) {
  return Guarded(error, [&] {
    world->world->recorder().Start(capacity);
    return tfring::Status::Ok();
  });
}

uint64_t tfr_world_records(tfr_world* world, tfr_record* records,
                           uint64_t capacity, uint64_t* lost) {
  return world->world->recorder().Take(records, capacity, lost);
}

void tfr_world_abort(tfr_world* world, const char* text) {
  static_cast<void>(Guarded(nullptr, [&] {
    world->world->Abort(text == nullptr ? "" : text);
    return tfring::Status::Ok();
  }));
}

void tfr_world_shutdown(tfr_world* world) {
  static_cast<void>(Guarded(nullptr, [&] {
    const std::unique_ptr<tfr_world> owned(world);
    const tfring::Status left = owned->world->Leave();
    if (!left.ok()) {
      // Freeing it would take it from a thread that still uses it.
      static_cast<void>(owned->world.release());
      std::fprintf(stderr, "tfring: warning: shutdown: %s\n",
                   left.message().c_str());
    }
    return left;
  }));
}

void tfr_world_after_fork(tfr_world* world) { world->world->AfterFork(); }

int tfr_process_set_add(tfr_world* world, const int32_t* ranks, int32_t count,
                        int64_t* handle, tfr_error* error) {
  return Guarded(error, [&] {
    return world->world->process_sets().Add(
        std::vector<int>(ranks, ranks + (count > 0 ? count : 0)), handle);
  });
}

int tfr_process_set_remove(tfr_world* world, int64_t handle, tfr_error* error) {
  return Guarded(error,
                 [&] { return world->world->process_sets().Remove(handle); });
}

int tfr_process_set_info(const tfr_world* world, int64_t handle, int32_t* size,
                         int32_t* rank, tfr_error* error) {
  return Guarded(error, [&] {
    return world->world->process_sets().Info(handle, size, rank);
  });
}

int tfr_submit(tfr_world* world, const tfr_request* request, tfr_error* error) {
  return Guarded(error, [&] { return world->world->Submit(*request); });
}

int tfr_device_of(tfr_world* world, const void* memory, int32_t* device,
                  tfr_error* error) {
  return WithDeviceMemory(world, error, [&](tfring::DeviceMemory* of) {
    int number = 0;
    TFR_RETURN_IF_ERROR(of->DeviceOf(memory, &number));
    *device = number + 1;
    return tfring::Status::Ok();
  });
}

int tfr_device_copy(tfr_world* world, void* to, const void* from,
                    uint64_t bytes, void* stream, tfr_error* error) {
  return WithDeviceMemory(world, error, [&](tfring::DeviceMemory* memory) {
    return memory->Copy(to, from, bytes, stream);
  });
}

int tfr_device_allocate(tfr_world* world, int32_t device, uint64_t bytes,
                        void** memory, tfr_error* error) {
  return WithDeviceMemory(world, error, [&](tfring::DeviceMemory* of) {
    return of->Allocate(device - 1, bytes, memory);
  });
}

void tfr_device_free(tfr_world* world, void* memory) {
  WithDeviceMemory(world, nullptr, [&](tfring::DeviceMemory* of) {
    of->Free(memory);
    return tfring::Status::Ok();
  });
}

uint64_t tfr_dtype_size(int32_t dtype) { return tfring::DtypeSize(dtype); }

int tfr_run(tfr_world* world, const tfr_request* request, tfr_error* error) {
  return Guarded(error, [&] { return world->world->Run(*request); });
}
