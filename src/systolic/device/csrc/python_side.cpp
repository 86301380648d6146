#include "python_side.h"

#include <torch/csrc/Exceptions.h>

#include <pthread.h>

#include <atomic>

namespace systolic {
namespace {
thread_local c10::DeviceIndex tls_device = 0;
std::atomic<bool> initialized{false};
std::atomic<int> cached_count{-1};
std::atomic<bool> is_forked{false};
}  // namespace

pybind11::object python_function(const char* name) {
  // Leaked on purpose: it must outlive static destruction. No guarded static: its guard would be held while the
  // import gives up the GIL, and a second thread would wait for the guard with the GIL.
  static std::atomic<PyObject*> runtime{nullptr};
  PyObject* module = runtime.load(std::memory_order_acquire);
  if (!module) {
    module = pybind11::module_::import("systolic.device.runtime").release().ptr();
    runtime.store(module, std::memory_order_release);
  }
  return pybind11::handle(module).attr(name);
}

void rethrow_python(pybind11::error_already_set& error) {
  error.restore();
  python_error out;
  out.persist();
  throw out;
}

bool interpreter_is_finalizing() {
#if PY_VERSION_HEX >= 0x030D0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

c10::DeviceIndex current_device() { return tls_device; }

c10::DeviceIndex exchange_device(c10::DeviceIndex device) {
  const auto previous = tls_device;
  if (device >= 0) tls_device = device;
  return previous;
}

c10::DeviceIndex device_count() noexcept {
  int count = cached_count;
  if (count >= 0) return static_cast<c10::DeviceIndex>(count);
  try {
    pybind11::gil_scoped_acquire gil;
    count = python_call("device_count").cast<int>();
  } catch (...) {
    return 0;
  }
  cached_count = count;
  return static_cast<c10::DeviceIndex>(count);
}

bool forked() { return is_forked.load(std::memory_order_relaxed); }

void check_not_forked() {
  TORCH_CHECK(!forked(), "this process was forked from one that had used the tpu device, and XLA does not survive a ",
              "fork. Start processes with the 'spawn' method: torch.multiprocessing.set_start_method(\"spawn\") or "
              "DataLoader(multiprocessing_context=\"spawn\"); or keep to CPU tensors in the forked process.");
}

void ensure_initialized() {
  check_not_forked();
  if (initialized.load(std::memory_order_acquire)) return;
  pybind11::gil_scoped_acquire gil;
  static const int registered = pthread_atfork(nullptr, nullptr, [] { is_forked = true; });
  TORCH_CHECK(registered == 0, "pthread_atfork failed with error ", registered);
  try {
    python_call("initialize");
  } catch (pybind11::error_already_set& error) {
    rethrow_python(error);
  }
  initialized.store(true, std::memory_order_release);
}

}  // namespace systolic
