// The collective inside a custom call: hands the request to the engine and
// waits, since XLA takes the results for granted when the call returns. The
// calling thread is one of XLA's; calls of one program are a chain, so it holds
// one of them at most.
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <string>
#include <vector>

#include "custom_ops/core/common/condition.h"
#include "custom_ops/tensorflow/query.h"
#include "custom_ops/tensorflow/world_holder.h"
#include "custom_ops/tensorflow/xla_call.h"

namespace tfring {
namespace {

// Rows of result i as the program has been compiled.
int64_t ExpectedRows(const XlaCall& call, size_t i, int32_t size,
                     int32_t rank) {
  const std::vector<int64_t>& dims = call.tensors[i].dims;
  const int64_t rows = dims.empty() ? 0 : dims[0];
  if (call.kind == TFR_ALLGATHER) return rows * size;
  if (call.kind != TFR_REDUCESCATTER) return rows;
  return rows / size + (rank < rows % size ? 1 : 0);
}

class Run {
 public:
  Run(const XlaCall& call, const XlaBuffers& buffers)
      : call_(call), buffers_(buffers), scratch_(call.tensors.size()) {}
  ~Run() {
    for (void* const memory : scratch_) buffers_.memory.Free(memory);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  int Go(std::string* text) {
    tfr_error error = {};
    if (CurrentWorld().With(
            [&](tfr_world* world) { return Submit(world, &error); }, &error) !=
        TFR_OK) {
      *text = error.text;
      return error.code;
    }
    std::unique_lock<std::mutex> lock(mutex_);
    Await(&ended_, &lock, [this] { return done_; });
    if (error_.code == TFR_OK) return CheckRows(text);
    *text = error_.text;
    return error_.code;
  }

 private:
  int Submit(tfr_world* world, tfr_error* error) {
    const int code =
        tfr_process_set_info(world, call_.process_set, &size_, &rank_, error);
    if (code != TFR_OK) return code;
    if (call_.ranks != 0 && (call_.ranks != size_ || call_.place != rank_)) {
      return Outlived(error);
    }
    std::vector<tfr_tensor> tensors(call_.tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) tensors[i] = Describe(i);
    if (call_.kind == TFR_ALLTOALL) counts_.resize(tensors.size() * size_);
    tfr_request request = call_.Describe(tensors, &counts_);
    request.device = buffers_.memory.device();
    request.stream = buffers_.memory.stream();
    request.allocate = [](void* user, int32_t tensor, int64_t rows) {
      return static_cast<Run*>(user)->Allocate(tensor, rows);
    };
    request.done = [](void* user, const tfr_error* done) {
      static_cast<Run*>(user)->Done(done);
    };
    request.user = this;
    request.patience = TFR_LINGER;
    return tfr_submit(world, &request, error);
  }

  // After another init, the same set may have other ranks. The program's
  // buffers have the sizes of those that were.
  int Outlived(tfr_error* error) const {
    error->code = TFR_FAILED_PRECONDITION;
    std::snprintf(error->text, sizeof(error->text),
                  "%s was compiled for place %d of %d ranks, before another "
                  "init. Here, it would be place %d of %d: trace the function "
                  "again",
                  call_.name.c_str(), call_.place, call_.ranks, rank_, size_);
    return error->code;
  }

  tfr_tensor Describe(size_t i) const {
    const XlaTensor& tensor = call_.tensors[i];
    tfr_tensor described = {};
    described.input = NotNull(buffers_.inputs[i]);
    if (call_.keeps_shapes()) {
      described.output = NotNull(buffers_.outputs[i]);
    }
    described.dims = tensor.dims.data();
    described.ndims = static_cast<int32_t>(tensor.dims.size());
    described.dtype = tensor.dtype;
    return described;
  }

  // Where ranks do not fit, the collective still ends well: all of them then
  // know it, and say the same.
  void* Allocate(int32_t i, int64_t rows) {
    if (rows == ExpectedRows(call_, i, size_, rank_))
      return NotNull(buffers_.outputs[i]);
    scratch_[i] = buffers_.memory.Allocate(call_.tensors[i].bytes(rows));
    return scratch_[i];
  }

  void Done(const tfr_error* error) {
    // Under the lock to the end: the waiter frees this as soon as it has it.
    const std::lock_guard<std::mutex> lock(mutex_);
    error_ = *error;
    done_ = true;
    ended_.notify_one();
  }

  int CheckRows(std::string* text) const {
    if (call_.kind == TFR_ALLGATHER) return CheckGathered(text);
    if (call_.kind != TFR_ALLTOALL) return TFR_OK;
    for (size_t i = 0; i < call_.tensors.size(); ++i) {
      for (int32_t r = 0; r < size_; ++r) {
        if (counts_[i * size_ + r] * size_ == call_.tensors[i].dims[0])
          continue;
        std::vector<int64_t> rows(size_);
        for (int32_t k = 0; k < size_; ++k) {
          rows[k] = counts_[i * size_ + k] * size_;
        }
        *text = Uneven("alltoall", rows);
        return TFR_INVALID_ARGUMENT;
      }
    }
    return TFR_OK;
  }

  // The last tensor of an allgather is each rank's numbers of rows.
  int CheckGathered(std::string* text) const {
    const size_t last = call_.tensors.size() - 1;
    std::vector<int64_t> rows(last * size_);
    const int code = buffers_.memory.Copy(rows.data(), buffers_.outputs[last],
                                          rows.size() * sizeof(int64_t), text);
    if (code != TFR_OK) return code;
    for (size_t i = 0; i < last; ++i) {
      std::vector<int64_t> of(size_);
      bool fits = true;
      for (int32_t r = 0; r < size_; ++r) {
        of[r] = rows[r * last + i];
        fits = fits && of[r] == call_.tensors[i].dims[0];
      }
      if (fits) continue;
      *text = Uneven("allgather", of);
      return TFR_INVALID_ARGUMENT;
    }
    return TFR_OK;
  }

  std::string Uneven(const char* what, const std::vector<int64_t>& rows) const {
    std::string text = std::string(
                           "`tensor` must have the same first "
                           "dimension on all ranks where ") +
                       what + " is compiled by XLA (" + call_.name +
                       "). Received: first dimensions ";
    for (size_t r = 0; r < rows.size(); ++r) {
      text += (r == 0 ? "" : ", ") + std::to_string(rows[r]);
    }
    return text +
           ", by rank. Pad the tensors, or leave jit_compile out (False).";
  }

  const XlaCall& call_;
  const XlaBuffers& buffers_;
  std::vector<void*> scratch_;  // results that do not fit, or null
  std::vector<int64_t> counts_;
  int32_t size_ = 0;
  int32_t rank_ = 0;  // place in the process set
  std::mutex mutex_;
  std::condition_variable ended_;
  bool done_ = false;
  tfr_error error_ = {};
};

int Answer(const XlaCall& call, const XlaBuffers& buffers, std::string* text) {
  const Query query{call.kind - kXlaFirstQuery, call.process_set};
  tfr_error error = {};
  int32_t answer = 0;
  const int code = CurrentWorld().With(
      [&](tfr_world* world) { return Ask(world, query, &answer, &error); },
      &error);
  *text = error.text;
  if (code != TFR_OK) return code;
  return buffers.memory.Copy(buffers.outputs[0], &answer, sizeof(answer), text);
}

// Hands its tensor on; its name is the error's text. XLA leaves assertions out.
int Check(const XlaCall& call, const XlaBuffers& buffers, std::string* text) {
  const size_t bytes = call.tensors[0].bytes();
  if (bytes < sizeof(float)) return TFR_INTERNAL;
  float last;
  const auto* values = static_cast<const char*>(buffers.inputs[0]);
  int code = buffers.memory.Copy(&last, values + bytes - sizeof(last),
                                 sizeof(last), text);
  if (code == TFR_OK && values != buffers.outputs[0]) {
    code = buffers.memory.Copy(buffers.outputs[0], values, bytes, text);
  }
  if (code != TFR_OK || last <= 0) return code;
  *text = call.name;
  return TFR_INVALID_ARGUMENT;
}

// As Python knows TensorFlow's codes.
const char* NameOf(int code) {
  switch (CodeForTensorFlow(code)) {
    case TFR_CANCELLED:
      return "CANCELLED";
    case TFR_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case TFR_DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case TFR_NOT_FOUND:
      return "NOT_FOUND";
    case TFR_RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case TFR_FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case kAborted:
      return "ABORTED";
    default:
      return "INTERNAL";
  }
}

}  // namespace

int RunXlaCall(const XlaCall& call, const XlaBuffers& buffers,
               std::string* text) {
  if (call.kind == kXlaProbe) return TFR_OK;
  if (call.kind == kXlaProbeFails) {
    *text = "a probe's error";
    return TFR_UNAVAILABLE;
  }
  if (call.kind == kXlaCheck) return Check(call, buffers, text);
  if (call.kind >= kXlaFirstQuery) {
    return Answer(call, buffers, text);
  }
  return Run(call, buffers).Go(text);
}

std::string MarkedError(int code, const std::string& text) {
  return text + " [tfring: " + NameOf(code) + "]";
}

}  // namespace tfring
