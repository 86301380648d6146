// A storage's data pointer owns a Cell; the cell holds one immutable XLA buffer (a jax.Array).
// Views share the storage, hence the cell: aliasing is right by construction.
#pragma once
#include <ATen/ATen.h>

#include <c10/core/CachingDeviceAllocator.h>

#include <atomic>
#include <string>
#include <vector>

namespace systolic {

constexpr auto kDevice = c10::DeviceType::PrivateUse1;

// Shape and dtype of the array inside a cell, interned so that cache keys compare one integer.
struct Spec {
  at::ScalarType dtype;
  std::vector<int64_t> shape;
};
using SpecId = int32_t;
constexpr SpecId kUnset = -1;  // the storage was never written: no array exists yet

SpecId intern_spec(at::ScalarType dtype, c10::IntArrayRef shape);
const Spec& spec_of(SpecId id);

struct Cell {
  PyObject* array = nullptr;  // owned reference; null while `spec` is kUnset
  SpecId spec = kUnset;
  c10::DeviceIndex device = 0;
  size_t nbytes = 0;
  uintptr_t address = 0;  // what data_ptr() shows
  // Device-to-host copies still reading `array` on another thread: it must not be donated.
  std::atomic<int> readers{0};
};

// The cell of a tensor's storage. Throws when the tensor is not on this device.
Cell& cell_of(const at::Tensor& tensor);

// Replace the array (steals the reference). Needs the GIL.
void set_array(Cell& cell, PyObject* array, SpecId spec);

// A tensor over a new storage of this device, without an array.
at::Tensor new_tensor(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      c10::DeviceIndex device);

c10::DeviceAllocator& allocator();
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

}  // namespace systolic
