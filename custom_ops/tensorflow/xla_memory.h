// The memory that a custom call of XLA works on: the host's, or that of the GPU
// behind a CUDA stream. CUDA is the engine's (tfr_device_copy).
#ifndef TFRING_TENSORFLOW_XLA_MEMORY_H_
#define TFRING_TENSORFLOW_XLA_MEMORY_H_

#include <cstddef>
#include <cstdint>
#include <string>

namespace tfring {

// Functions return a tfr_code and say why in `*text`.
class XlaMemory {
 public:
  XlaMemory() = default;  // the host's
  // Of the GPU that `operand` is on, which is the stream's.
  static int Of(const void* operand, void* stream, XlaMemory* out,
                std::string* text);

  // As in tfr_request.
  int32_t device() const { return device_; }
  void* stream() const { return stream_; }

  // Between here and the host, behind the stream's work. Waits for it.
  int Copy(void* to, const void* from, size_t bytes, std::string* text) const;
  // NULL: there is none left.
  void* Allocate(size_t bytes) const;
  void Free(void* memory) const;

 private:
  int32_t device_ = 0;
  void* stream_ = nullptr;
};

}  // namespace tfring

#endif  // TFRING_TENSORFLOW_XLA_MEMORY_H_
