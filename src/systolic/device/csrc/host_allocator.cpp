// Host memory for transfers. XLA copies from ordinary memory, so there is nothing to pin: the allocator
// exists because PyTorch asks every accelerator for one (torch.accelerator.empty_host_cache).
#include <ATen/core/CachingHostAllocator.h>
#include <c10/core/CPUAllocator.h>

namespace systolic {
namespace {

struct HostAllocator final : at::HostAllocator {
  c10::DataPtr allocate(size_t nbytes) override { return c10::GetDefaultCPUAllocator()->allocate(nbytes); }
  c10::DeleterFnPtr raw_deleter() const override { return c10::GetDefaultCPUAllocator()->raw_deleter(); }
  void copy_data(void* target, const void* source, size_t count) const override {
    default_copy_data(target, source, count);
  }
  bool record_event(void*, void*, c10::Stream) override { return true; }
  void empty_cache() override {}
  at::HostStats get_stats() override { return {}; }
  void reset_accumulated_stats() override {}
  void reset_peak_stats() override {}
};

HostAllocator the_allocator;
REGISTER_HOST_ALLOCATOR(at::kPrivateUse1, &the_allocator);

}  // namespace
}  // namespace systolic
