#include "custom_ops/tensorflow/xla_call.h"

#include <cstdlib>
#include <cstring>

namespace tfring {
namespace {

// Reads what tfring/_xla_module.py has written; a text without end is never
// read beyond its size.
class Reader {
 public:
  Reader(const char* text, size_t size) : text_(text, size) {
    next_ = text_.c_str();
  }

  int64_t Int() {
    char* end = nullptr;
    const int64_t value = std::strtoll(next_, &end, 10);
    if (end == next_) ok_ = false;
    next_ = end;
    return value;
  }

  double Factor() {
    const int64_t bits = Int();
    double value;
    static_assert(sizeof(value) == sizeof(bits), "float64 expected");
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }

  std::string Hex() {
    while (*next_ == ' ') ++next_;
    std::string value;
    for (; next_[0] != '\0' && next_[1] != '\0'; next_ += 2) {
      const char digits[] = {next_[0], next_[1], '\0'};
      value.push_back(static_cast<char>(std::strtol(digits, nullptr, 16)));
    }
    return value;
  }

  bool ok() const { return ok_; }

 private:
  const std::string text_;
  const char* next_;
  bool ok_ = true;
};

}  // namespace

size_t XlaTensor::bytes(int64_t rows) const {
  size_t bytes = tfr_dtype_size(dtype) * static_cast<size_t>(rows);
  for (size_t d = 1; d < dims.size(); ++d) {
    bytes *= static_cast<size_t>(dims[d]);
  }
  return bytes;
}

bool XlaCall::Parse(const char* text, size_t size) {
  Reader reader(text, size);
  reader.Int();  // the size
  kind = static_cast<int32_t>(reader.Int());
  process_set = reader.Int();
  reduce_op = static_cast<int32_t>(reader.Int());
  root = static_cast<int32_t>(reader.Int());
  prescale = reader.Factor();
  postscale = reader.Factor();
  wire_dtype = static_cast<int32_t>(reader.Int());
  ranks = static_cast<int32_t>(reader.Int());
  place = static_cast<int32_t>(reader.Int());
  const int64_t count = reader.Int();
  for (int64_t i = 0; i < count && reader.ok(); ++i) {
    XlaTensor tensor;
    tensor.dtype = static_cast<int32_t>(reader.Int());
    const int64_t ndims = reader.Int();
    for (int64_t d = 0; d < ndims && reader.ok(); ++d) {
      tensor.dims.push_back(reader.Int());
      if (tensor.dims.back() < 0) dims_operand = true;
    }
    tensors.push_back(std::move(tensor));
  }
  name = reader.Hex();
  return reader.ok();
}

size_t XlaCall::dim_count() const {
  size_t count = 0;
  for (const XlaTensor& tensor : tensors) count += tensor.dims.size();
  return count;
}

void XlaCall::SetDims(const int32_t* dims) {
  for (XlaTensor& tensor : tensors) {
    for (int64_t& dim : tensor.dims) dim = *dims++;
  }
}

}  // namespace tfring
