// NCCL without the engine, to compare with: the calls that a program makes by
// itself.
#ifndef TFRING_TESTS_GPU_PLAIN_NCCL_H_
#define TFRING_TESTS_GPU_PLAIN_NCCL_H_

#include <cstring>

#include "custom_ops/core/nccl/nccl_api.h"
#include "gpu_job.h"

namespace tfring_test {

class PlainNccl {
 public:
  // The engine's world carries the id.
  PlainNccl(const JobOptions& options, const GpuLibrary& gpu, tfr_world* world,
            int rank, int blocking)
      : gpu_(gpu), stream_(gpu.NewStream()) {
    EXPECT_OK(tfring::NcclApi::Load(options.nccl_library, &nccl_));
    tfring::NcclUniqueId id = {};
    if (rank == 0) EXPECT_EQ(nccl_.GetUniqueId(&id), 0);
    Call call;
    call.name = "id";
    call.kind = TFR_BROADCAST;
    call.tensors = {{{sizeof(id)}, TFR_UINT8, &id, &id}};
    tfr_error error = {};
    EXPECT_EQ(call.Run(world, &error), TFR_OK);
    tfring::NcclConfig config;
    config.blocking = blocking;
    Await(nccl_.CommInitRankConfig(&comm_, options.size, id, rank, &config));
  }
  ~PlainNccl() {
    Await(nccl_.CommFinalize(comm_));
    nccl_.CommDestroy(comm_);
    gpu_.EndStream(stream_);
  }
  PlainNccl(const PlainNccl&) = delete;
  PlainNccl& operator=(const PlainNccl&) = delete;

  void Allreduce(void* buffer, size_t elements) {
    nccl_.GroupStart();
    nccl_.AllReduce(buffer, buffer, elements, tfring::kNcclFloat32,
                    tfring::kNcclSum, comm_, stream_);
    Await(nccl_.GroupEnd());
  }
  void Synchronize() const { gpu_.Call("cudaStreamSynchronize", stream_); }

 private:
  void Await(int result) {
    while (result == tfring::kNcclInProgress) {
      nccl_.CommGetAsyncError(comm_, &result);
    }
    EXPECT_EQ(result, 0);
  }

  const GpuLibrary& gpu_;
  void* const stream_;
  tfring::NcclApi nccl_ = {};
  tfring::NcclComm comm_ = nullptr;
};

}  // namespace tfring_test

#endif  // TFRING_TESTS_GPU_PLAIN_NCCL_H_
