#include "custom_ops/core/collectives/alltoall.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "custom_ops/core/collectives/deliver.h"
#include "custom_ops/core/collectives/gather.h"
#include "custom_ops/core/collectives/outputs.h"
#include "custom_ops/core/collectives/stream.h"
#include "custom_ops/core/common/copy.h"

namespace tfring {
namespace {

// The rows of each tensor for each rank, of all ranks.
class Splits {
 public:
  Status Exchange(DataPlane* plane, const Operation& operation) {
    size_ = static_cast<size_t>(plane->members().size);
    tensors_ = operation.tensors.size();
    const std::string mine(
        reinterpret_cast<const char*>(operation.splits.data()),
        operation.splits.size() * sizeof(int64_t));
    std::string all;
    TFR_RETURN_IF_ERROR(GatherSmall(plane, mine, &all));
    rows_.resize(size_ * tensors_ * size_);
    if (!rows_.empty()) std::memcpy(rows_.data(), all.data(), all.size());
    return Status::Ok();
  }

  uint64_t Rows(size_t from, size_t tensor, size_t to) const {
    return static_cast<uint64_t>(
        rows_[(from * tensors_ + tensor) * size_ + to]);
  }

 private:
  size_t size_ = 0;
  size_t tensors_ = 0;
  std::vector<int64_t> rows_;
};

// The rows between this rank and one other, in one direction.
struct Parcel {
  Stream stream;                 // of all tensors' rows
  std::vector<uint64_t> begins;  // of each tensor: where they start
};

class AlltoallJob {
 public:
  AlltoallJob(DataPlane* plane, const Operation& operation)
      : plane_(plane),
        operation_(operation),
        size_(static_cast<size_t>(plane->members().size)),
        me_(static_cast<size_t>(plane->members().rank)) {}

  Status Run() {
    TFR_RETURN_IF_ERROR(splits_.Exchange(plane_, operation_));
    WriteCounts();
    const Status asked = AskForOutputs();
    // A rank without outputs still takes part, or the others would wait for it.
    if (!asked.ok()) outputs_.clear();
    PackParcels();
    CopyOwn();
    TFR_RETURN_IF_ERROR(Deliver(plane_, Job()));
    return asked;
  }

 private:
  size_t tensors() const { return operation_.tensors.size(); }
  uint64_t Bytes(size_t from, size_t tensor, size_t to) const {
    return splits_.Rows(from, tensor, to) *
           operation_.RowBytes(operation_.tensors[tensor]);
  }

  void WriteCounts() {
    if (operation_.counts == nullptr) return;
    for (size_t t = 0; t < tensors(); ++t) {
      for (size_t from = 0; from < size_; ++from) {
        operation_.counts[t * size_ + from] =
            static_cast<int64_t>(splits_.Rows(from, t, me_));
      }
    }
  }

  Status AskForOutputs() {
    for (size_t t = 0; t < tensors(); ++t) {
      uint64_t rows = 0;
      for (size_t from = 0; from < size_; ++from) {
        TFR_RETURN_IF_ERROR(
            AddRows(operation_, t, splits_.Rows(from, t, me_), &rows));
      }
      char* output = nullptr;
      TFR_RETURN_IF_ERROR(OutputOf(operation_, t, rows, &output));
      outputs_.push_back(output);
    }
    return Status::Ok();
  }

  void PackParcels() {
    std::vector<uint64_t> sent(tensors());
    std::vector<uint64_t> got(tensors());
    for (size_t peer = 0; peer < size_; ++peer) {
      sends_.push_back(Pack(me_, peer, &sent));
      gets_.push_back(Pack(peer, me_, &got));
    }
  }

  Parcel Pack(size_t from, size_t to, std::vector<uint64_t>* ends) const {
    Parcel parcel;
    parcel.begins = *ends;
    parcel.stream.Reserve(tensors());
    for (size_t t = 0; t < tensors(); ++t) {
      const uint64_t bytes = Bytes(from, t, to);
      parcel.stream.Add(bytes);
      (*ends)[t] += bytes;
    }
    return parcel;
  }

  void CopyOwn() const {
    for (size_t t = 0; t < outputs_.size(); ++t) {
      const uint64_t bytes = Bytes(me_, t, me_);
      if (bytes == 0) continue;
      CopyBytes(outputs_[t] + gets_[me_].begins[t],
                operation_.tensors[t].input + sends_[me_].begins[t], bytes);
    }
  }

  DeliverJob Job() const {
    DeliverJob job;
    job.bytes.assign(size_, std::vector<uint64_t>(size_));
    for (size_t from = 0; from < size_; ++from) {
      for (size_t to = 0; to < size_; ++to) {
        for (size_t t = 0; t < tensors(); ++t) {
          job.bytes[from][to] += AlignStream(Bytes(from, t, to));
        }
      }
    }
    job.read = [this](int to, uint64_t begin, uint64_t end, char* at,
                      Stores stores) {
      Read(sends_[static_cast<size_t>(to)], begin, end, at, stores);
    };
    job.write = [this](int from, uint64_t begin, uint64_t end, const char* at) {
      if (!outputs_.empty()) {
        Write(gets_[static_cast<size_t>(from)], begin, end, at);
      }
    };
    return job;
  }

  void Read(const Parcel& parcel, uint64_t begin, uint64_t end, char* place,
            Stores stores) const {
    parcel.stream.ForRange(
        begin, end,
        [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
          CopyBytes(place + (at - begin),
                    operation_.tensors[t].input + parcel.begins[t] + offset,
                    bytes, stores);
        });
  }

  void Write(const Parcel& parcel, uint64_t begin, uint64_t end,
             const char* place) const {
    parcel.stream.ForRange(
        begin, end,
        [&](size_t t, uint64_t offset, uint64_t bytes, uint64_t at) {
          CopyBytes(outputs_[t] + parcel.begins[t] + offset,
                    place + (at - begin), bytes);
        });
  }

  DataPlane* const plane_;
  const Operation& operation_;
  const size_t size_;
  const size_t me_;
  Splits splits_;
  std::vector<Parcel> sends_;   // to each rank
  std::vector<Parcel> gets_;    // from each rank
  std::vector<char*> outputs_;  // empty: there is no memory for them
};

}  // namespace

Status Alltoall(DataPlane* plane, const Operation& operation) {
  return AlltoallJob(plane, operation).Run();
}

}  // namespace tfring
