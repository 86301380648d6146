// PrivateUse1 hooks (what PyTorch asks of an accelerator) and the random number generator.
#include "cell.h"
#include "generator.h"
#include "python_side.h"

#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <c10/core/CPUAllocator.h>

#include <random>

namespace systolic {

Generator::Generator(c10::DeviceIndex device)
    : c10::GeneratorImpl(c10::Device(kDevice, device), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}

uint64_t Generator::seed() {
  const uint64_t value = (uint64_t(std::random_device{}()) << 32) | std::random_device{}();
  set_current_seed(value & ((uint64_t(1) << 53) - 1));  // torch.initial_seed() must fit a double, as on CUDA
  return seed_;
}

void Generator::set_state(const c10::TensorImpl& state) {
  TORCH_CHECK(state.device().is_cpu() && state.dtype() == at::kByte && state.numel() == 16,
              "a tpu generator state is a CPU uint8 tensor of 16 bytes (seed, offset); got ", state.numel(),
              " elements of ", state.dtype());
  const auto* words = static_cast<const uint64_t*>(state.data());
  seed_ = words[0];
  offset_ = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> Generator::get_state() const {
  auto state = at::empty({16}, at::TensorOptions().dtype(at::kByte).device(at::kCPU));
  auto* words = static_cast<uint64_t*>(state.data_ptr());
  words[0] = seed_;
  words[1] = offset_;
  return state.getIntrusivePtr();
}

Generator* Generator::clone_impl() const {
  auto* copy = new Generator(device().index());
  copy->seed_ = seed_;
  copy->offset_ = offset_;
  return copy;
}

at::Generator& default_generator(c10::DeviceIndex device) {
  static auto* generators = new std::vector<at::Generator>([] {
    std::vector<at::Generator> all;
    for (int i = 0; i < 64; ++i) all.push_back(at::make_generator<Generator>(c10::DeviceIndex(i)));
    return all;
  }());
  return generators->at(device < 0 ? current_device() : device);
}

namespace {

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex device) const override {
    return default_generator(device);
  }
  at::Generator getNewGenerator(c10::DeviceIndex device) const override {
    return at::make_generator<Generator>(device < 0 ? current_device() : device);
  }
  at::Device getDeviceFromPtr(void*) const override { return {kDevice, current_device()}; }
  bool isPinnedPtr(const void*) const override { return false; }
  at::Allocator* getPinnedMemoryAllocator() const override { return c10::GetDefaultCPUAllocator(); }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  void init() const override { ensure_initialized(); }
  c10::DeviceIndex deviceCount() const override { return device_count(); }
  void setCurrentDevice(c10::DeviceIndex device) const override { exchange_device(device); }
  c10::DeviceIndex getCurrentDevice() const override { return current_device(); }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override { return exchange_device(device); }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t nbytes) const override {
    resize_storage(storage.unsafeGetStorageImpl(), nbytes);
  }
};

}  // namespace

void register_hooks() { at::RegisterPrivateUse1HooksInterface(new Hooks); }

}  // namespace systolic
