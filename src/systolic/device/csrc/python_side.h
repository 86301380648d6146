// Calls from the C++ core into systolic.device.runtime, the Python half of the device.
#pragma once
#include <torch/csrc/utils/pybind.h>

namespace systolic {

pybind11::object python_function(const char* name);  // needs the GIL

template <class... Args>
pybind11::object python_call(const char* name, Args&&... args) {
  return python_function(name)(std::forward<Args>(args)...);
}

// Turn a Python exception into one that PyTorch's bindings raise again with its own type.
[[noreturn]] void rethrow_python(pybind11::error_already_set& error);

bool interpreter_is_finalizing();
c10::DeviceIndex current_device();
c10::DeviceIndex exchange_device(c10::DeviceIndex device);  // -1 keeps the current one
c10::DeviceIndex device_count() noexcept;
void ensure_initialized();  // imports jax and registers the operator table, once

// XLA's threads do not survive a fork: a child of a process that used the device would wait for them forever.
bool forked();
void check_not_forked();

}  // namespace systolic
