// Counter-based random state: {seed, offset}. Every random operator has an offset of its own.
#pragma once
#include <ATen/core/Generator.h>

namespace systolic {

class Generator final : public c10::GeneratorImpl {
 public:
  explicit Generator(c10::DeviceIndex device);
  static c10::DeviceType device_type() { return c10::DeviceType::PrivateUse1; }
  void set_current_seed(uint64_t seed) override {
    seed_ = seed;
    offset_ = 0;
  }
  void set_offset(uint64_t offset) override { offset_ = offset; }
  uint64_t get_offset() const override { return offset_; }
  uint64_t current_seed() const override { return seed_; }
  uint64_t seed() override;
  void set_state(const c10::TensorImpl& state) override;
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override;
  // The offset of the next of `count` random operators. Each takes 4, the step that callers of CUDA
  // generators expect when they rewind one operator with set_offset.
  uint64_t take(uint64_t count) {
    const auto first = offset_;
    offset_ += 4 * count;
    return first;
  }

 private:
  Generator* clone_impl() const override;
  uint64_t seed_ = c10::default_rng_seed_val;
  uint64_t offset_ = 0;
};

at::Generator& default_generator(c10::DeviceIndex device);
void register_hooks();

}  // namespace systolic
