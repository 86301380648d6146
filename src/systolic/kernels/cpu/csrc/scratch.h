// Working memory that a thread keeps from call to call.
#pragma once

#include <cstdint>
#include <cstdlib>

namespace systolic {

inline int64_t RoundUp(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

// Scratch of one thread, grown on demand and kept; 64-byte aligned.
class Scratch {
 public:
  float* Get(int64_t floats) {
    if (floats > size_) {
      std::free(data_);
      data_ = static_cast<float*>(std::aligned_alloc(64, RoundUp(floats * sizeof(float), 64)));
      if (data_ == nullptr) std::abort();
      size_ = floats;
    }
    return data_;
  }
  ~Scratch() { std::free(data_); }

 private:
  float* data_ = nullptr;
  int64_t size_ = 0;
};

}  // namespace systolic
