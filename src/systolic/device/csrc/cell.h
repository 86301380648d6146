// A storage's data pointer owns a Cell; the cell holds one immutable XLA buffer (a jax.Array).
// Views share the storage, hence the cell: aliasing is right by construction.
#pragma once
#include <ATen/ATen.h>

#include <c10/core/CachingDeviceAllocator.h>
#include <pybind11/pybind11.h>

#include <atomic>
#include <string>
#include <vector>

namespace systolic {

constexpr int kMaxDevices = 64;

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
  static constexpr int32_t kReady = -1, kLost = -2;
  PyObject* array = nullptr;  // owned reference; null while `spec` is kUnset or a value is pending
  int32_t pending = kReady;   // fused mode: number of the recorded value that will be the array
  SpecId spec = kUnset;
  c10::DeviceIndex device = 0;
  size_t nbytes = 0;
  uintptr_t address = 0;  // what data_ptr() shows
  // Device-to-host copies still reading `array` on another thread: it must not be donated.
  std::atomic<int> readers{0};
};

// The cell of a tensor's storage. Throws when the tensor is not on this device.
Cell& cell_of(const at::Tensor& tensor);

// The array, borrowed, or null if the storage was never written; runs recorded operators that it waits for.
// Needs the GIL.
PyObject* array_of(Cell& cell);

// The recorded value that the cell waits for, if any, is no longer wanted by it. Needs the GIL.
void forget(Cell& cell);

// Replace the array (steals the reference). Needs the GIL.
void set_array(Cell& cell, PyObject* array, SpecId spec);

// A tensor over a new storage of this device, without an array.
at::Tensor new_tensor(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      c10::DeviceIndex device);

// Throw torch.OutOfMemoryError unless `nbytes` more fit on the device beside what is in use.
void check_room(c10::DeviceIndex device, size_t nbytes);
// The same when XLA reports exhausted memory; other errors return.
void throw_if_exhausted(const pybind11::error_already_set& error, c10::DeviceIndex device, size_t nbytes);
// Bytes that storages of a device may take together: its total memory, or less.
int64_t memory_limit(c10::DeviceIndex device);
void set_memory_limit(c10::DeviceIndex device, int64_t nbytes);

c10::DeviceAllocator& allocator();
void resize_storage(c10::StorageImpl* storage, size_t nbytes);

}  // namespace systolic
