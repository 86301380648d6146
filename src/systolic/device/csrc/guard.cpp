// Device guard, streams and events.
//
// XLA orders work by data, not by queue: a program starts when its inputs are ready. A stream here
// is therefore a name; an event holds what had been launched when it was recorded, so waiting for it
// is waiting for that work.
#include "python_side.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

namespace systolic {
namespace {

using pybind11::gil_scoped_acquire;
constexpr auto kType = c10::DeviceType::PrivateUse1;
thread_local c10::StreamId tls_stream[64] = {};
std::atomic<c10::StreamId> next_stream{1};

struct Event {
  PyObject* recorded = nullptr;  // a systolic.device.streams.Recorded
};

c10::Device normalized(c10::Device device) {
  return device.has_index() ? device : c10::Device(kType, current_device());
}

template <class... Args>
pybind11::object call(const char* name, Args&&... args) {
  try {
    return python_call(name, std::forward<Args>(args)...);
  } catch (pybind11::error_already_set& error) {
    rethrow_python(error);
  }
}

struct GuardImpl final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return kType; }
  c10::Device exchangeDevice(c10::Device device) const override {
    return {kType, exchange_device(device.index())};
  }
  c10::Device getDevice() const override { return {kType, current_device()}; }
  void setDevice(c10::Device device) const override {
    TORCH_CHECK(device.index() < device_count(), "tpu:", int(device.index()), " does not exist: this process has ",
                int(device_count()), " tpu device(s); choose a smaller index");
    exchange_device(device.index());
  }
  void uncheckedSetDevice(c10::Device device) const noexcept override { exchange_device(device.index()); }
  c10::Stream getStream(c10::Device device) const override {
    device = normalized(device);
    return c10::Stream(c10::Stream::UNSAFE, device, tls_stream[device.index()]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::DEFAULT, normalized(device));
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getNewStream(device, 0); }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, normalized(device), next_stream++);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const auto previous = getStream(stream.device());
    tls_stream[normalized(stream.device()).index()] = stream.id();
    return previous;
  }
  void* getStreamNativeHandle(const c10::Stream) const override { return nullptr; }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    auto* e = static_cast<Event*>(event);
    if (!e) return;
    if (e->recorded && !interpreter_is_finalizing()) {
      gil_scoped_acquire gil;
      Py_DECREF(e->recorded);
    }
    delete e;
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    gil_scoped_acquire gil;
    if (!*event) *event = new Event;
    auto* e = static_cast<Event*>(*event);
    Py_XDECREF(e->recorded);
    e->recorded = nullptr;
    e->recorded = call("record_event", int(stream.device_index())).release().ptr();
  }
  // Programs wait for their inputs by themselves, and host copies wait for the event's work: nothing to add.
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void* event) const override {
    auto* e = static_cast<Event*>(event);
    if (!e || !e->recorded) return true;
    gil_scoped_acquire gil;
    return call("query_event", pybind11::handle(e->recorded)).cast<bool>();
  }
  c10::DeviceIndex deviceCount() const noexcept override { return device_count(); }
  c10::DeviceCapability getDeviceCapability(c10::Device) const override {
    c10::DeviceCapability capability;
    return capability;
  }
  bool queryStream(const c10::Stream& stream) const override {
    gil_scoped_acquire gil;
    return call("query_device", int(stream.device_index())).cast<bool>();
  }
  void synchronizeStream(const c10::Stream& stream) const override { synchronizeDevice(stream.device_index()); }
  void synchronizeEvent(void* event) const override {
    auto* e = static_cast<Event*>(event);
    if (!e || !e->recorded) return;
    gil_scoped_acquire gil;
    call("synchronize_event", pybind11::handle(e->recorded));
  }
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    gil_scoped_acquire gil;
    call("synchronize_device", int(device < 0 ? current_device() : device));
  }
  double elapsedTime(void* first, void* second, const c10::DeviceIndex) const override {
    auto* a = static_cast<Event*>(first);
    auto* b = static_cast<Event*>(second);
    TORCH_CHECK(a && b && a->recorded && b->recorded, "both events must be recorded before elapsed_time");
    gil_scoped_acquire gil;
    return call("elapsed_ms", pybind11::handle(a->recorded), pybind11::handle(b->recorded)).cast<double>();
  }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, GuardImpl);

}  // namespace
}  // namespace systolic
