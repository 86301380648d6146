// The operators that are about storage rather than arithmetic: allocation, views, copies, item().
#include "dispatch.h"
#include "profiler.h"
#include "python_side.h"

#include <ATen/NativeFunctions.h>
#include <ATen/EmptyTensor.h>
#include <ATen/TensorUtils.h>
#include <ATen/native/Resize.h>
#include <torch/library.h>

namespace py = pybind11;

namespace systolic {
namespace {

c10::DeviceIndex index_of(c10::optional<c10::Device> device) {
  const auto index = device && device->has_index() ? device->index() : current_device();
  TORCH_CHECK(index < device_count(), "tpu:", int(index), " does not exist: this process has ", int(device_count()),
              " tpu device(s). On a machine without a TPU, XLA_FLAGS=--xla_force_host_platform_device_count=N gives N.");
  return index;
}

void check_dtype(at::ScalarType dtype) {
  py::gil_scoped_acquire gil;
  try {
    python_call("check_dtype", static_cast<int>(dtype));
  } catch (py::error_already_set& error) {
    rethrow_python(error);
  }
}

at::ScalarType checked(c10::optional<at::ScalarType> dtype) {
  const auto type = c10::dtype_or_default(dtype);
  static uint64_t known = 0;  // dtypes already found to be supported
  const uint64_t bit = uint64_t(1) << static_cast<int>(type);
  if (!(known & bit)) {
    check_dtype(type);
    known |= bit;
  }
  return type;
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, c10::optional<at::ScalarType> dtype,
                         c10::optional<at::Layout> layout, c10::optional<at::Device> device,
                         c10::optional<bool> pin_memory) {
  ensure_initialized();
  TORCH_CHECK(c10::layout_or_default(layout) == at::kStrided,
              "tpu tensors are dense: layout ", c10::layout_or_default(layout), " is not supported; use torch.strided");
  TORCH_CHECK(!c10::pinned_memory_or_default(pin_memory), "Only dense CPU tensors can be pinned");
  at::detail::check_size_nonnegative(size);
  return new_tensor(checked(dtype), size, stride, index_of(device));
}

at::Tensor empty(at::IntArrayRef size, c10::optional<at::ScalarType> dtype, c10::optional<at::Layout> layout,
                 c10::optional<at::Device> device, c10::optional<bool> pin_memory,
                 c10::optional<at::MemoryFormat> format) {
  at::detail::check_size_nonnegative(size);
  const auto wanted = format.value_or(at::MemoryFormat::Contiguous);
  std::vector<int64_t> strides(size.size());
  if (wanted == at::MemoryFormat::ChannelsLast && size.size() == 4) {
    strides = c10::get_channels_last_strides_2d(size);
  } else if (wanted == at::MemoryFormat::ChannelsLast3d && size.size() == 5) {
    strides = c10::get_channels_last_strides_3d(size);
  } else {
    int64_t step = 1;
    for (int64_t i = static_cast<int64_t>(size.size()) - 1; i >= 0; --i) {
      strides[i] = step;
      step *= std::max<int64_t>(size[i], 1);
    }
  }
  return empty_strided(size, strides, dtype, layout, device, pin_memory);
}

// Zero tensors have no memory: PyTorch makes them real before any other kernel of this device sees one.
struct NoMemory final : c10::Allocator {
  explicit NoMemory(c10::Device device) : device(device) {}
  c10::DataPtr allocate(size_t) override { return {nullptr, nullptr, &c10::detail::deleteNothing, device}; }
  c10::DeleterFnPtr raw_deleter() const override { return &c10::detail::deleteNothing; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "a zero tensor has no bytes to copy");
  }
  c10::Device device;
};

at::Tensor efficient_zero_tensor(at::IntArrayRef size, c10::optional<at::ScalarType> dtype,
                                 c10::optional<at::Layout>, c10::optional<at::Device> device, c10::optional<bool>) {
  ensure_initialized();
  NoMemory none(c10::Device(kDevice, index_of(device)));
  const auto keys = c10::DispatchKeySet(c10::DispatchKey::PrivateUse1) | c10::DispatchKeySet(c10::DispatchKey::ZeroTensor);
  return at::detail::empty_generic(size, &none, keys, checked(dtype), c10::nullopt);
}

at::Tensor as_strided(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                      c10::optional<int64_t> offset) {
  return at::native::as_strided_tensorimpl(self, size, stride, offset);
}

at::Tensor view(const at::Tensor& self, at::IntArrayRef size) { return at::native::view(self, size); }

at::Tensor unfold(const at::Tensor& self, int64_t dimension, int64_t size, int64_t step) {
  return at::native::unfold(self, dimension, size, step);
}

at::Tensor view_as_real(const at::Tensor& self) { return at::native::view_as_real(self); }

at::Tensor view_as_complex(const at::Tensor& self) { return at::native::view_as_complex(self); }

bool is_set_to(const at::Tensor& self, const at::Tensor& source) { return at::native::is_set_to(self, source); }

at::Tensor reshape_alias(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride) {
  return at::native::_reshape_alias(self, size, stride);
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset, at::IntArrayRef size,
                        at::IntArrayRef stride) {
  TORCH_CHECK(offset >= 0, "Tensor: invalid storage offset ", offset);
  TORCH_CHECK(stride.empty() || stride.size() == size.size(), "unequal size length (", size.size(),
              ") and stride length (", stride.size(), ")");
  auto* impl = self.unsafeGetTensorImpl();
  impl->set_storage_keep_dtype(std::move(source));
  impl->set_storage_offset(offset);
  if (stride.empty() && !size.empty()) {
    impl->set_sizes_contiguous(size);
  } else {
    impl->set_sizes_and_strides(size, stride);
  }
  return self;
}

at::Tensor& set_whole_storage(at::Tensor& self, at::Storage source) {
  const int64_t count = static_cast<int64_t>(source.nbytes() / self.itemsize());
  return set_storage(self, std::move(source), 0, {count}, {});
}

at::Tensor& set_tensor(at::Tensor& self, const at::Tensor& source) {
  return set_storage(self, source.storage(), source.storage_offset(), source.sizes(), source.strides());
}

at::Tensor& set_empty(at::Tensor& self) {
  auto fresh = new_tensor(self.scalar_type(), {0}, {1}, self.device().index());
  return set_tensor(self, fresh);
}

const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef size, c10::optional<at::MemoryFormat> format) {
  auto* impl = self.unsafeGetTensorImpl();
  if (self.sizes() == size && !format) return self;
  impl->set_sizes_contiguous(size);
  if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
  const size_t needed = at::detail::computeStorageNbytes(self.sizes(), self.strides(), self.itemsize(),
                                                         self.storage_offset());
  auto* storage = self.storage().unsafeGetStorageImpl();
  if (needed > storage->nbytes()) resize_storage(storage, needed);
  return self;
}

void record_copy(const char* name, c10::DeviceIndex device, int64_t started, size_t bytes) {
  if (started == 0) return;  // nobody was recording when the copy began
  const int64_t finished = profiler::now();
  profiler::record(profiler::Kind::Copy, name, device, started, finished, finished, bytes);
}

void device_to_host(const at::Tensor& source, const at::Tensor& target) {
  check_not_forked();
  // A contiguous slice is read in place; anything else is first made dense on the device.
  at::Tensor dense = source.is_contiguous() ? source : at::empty(source.sizes(), source.options()).copy_(source);
  Cell& cell = cell_of(dense);
  at::Tensor staging = target.is_contiguous() && target.scalar_type() == dense.scalar_type()
                           ? target
                           : at::empty(dense.sizes(), target.options().dtype(dense.scalar_type()));
  if (cell.spec == kUnset) {
    staging.zero_();
  } else if (dense.numel() > 0) {
    py::gil_scoped_acquire gil;
    // The reference keeps the array alive while another thread may replace it in the cell.
    py::object array;
    {
      LaunchTurn turn;
      ++cell.readers;
      array = py::reinterpret_borrow<py::object>(array_of(cell));
    }
    struct Done {
      std::atomic<int>& readers;
      ~Done() { --readers; }
    } done{cell.readers};
    try {
      const int64_t started = profiler::active() ? profiler::now() : 0;
      python_call("read_bytes", array, reinterpret_cast<uintptr_t>(staging.data_ptr()), dense.nbytes(),
                  dense.storage_offset() * dense.itemsize());
      record_copy("Memcpy DtoH", source.device().index(), started, dense.nbytes());
    } catch (py::error_already_set& error) {
      rethrow_python(error);
    }
  }
  if (!staging.is_same(target)) target.copy_(staging);
}

void host_to_device(const at::Tensor& source, const at::Tensor& target) {
  auto dense = source.to(target.scalar_type()).expand(target.sizes()).contiguous();
  Cell& cell = cell_of(target);
  const bool whole = target.is_contiguous() && target.storage_offset() == 0 && target.nbytes() == cell.nbytes;
  if (!whole) {
    auto staged = at::empty(target.sizes(), target.options());
    host_to_device(dense, staged);
    target.copy_(staged);
    return;
  }
  py::gil_scoped_acquire gil;
  try {
    py::tuple shape(target.dim());
    for (int64_t i = 0; i < target.dim(); ++i) shape[i] = target.size(i);
    const int64_t started = profiler::active() ? profiler::now() : 0;
    auto array = python_call("from_host", reinterpret_cast<uintptr_t>(dense.data_ptr()), dense.nbytes(), shape,
                             static_cast<int>(target.scalar_type()), static_cast<int>(target.device().index()));
    record_copy("Memcpy HtoD", target.device().index(), started, dense.nbytes());
    LaunchTurn turn;  // a launch on another thread may still borrow the old array
    set_array(cell, array.release().ptr(), intern_spec(target.scalar_type(), target.sizes()));
  } catch (py::error_already_set& error) {
    throw_if_exhausted(error, target.device().index(), target.nbytes());
    rethrow_python(error);
  }
}

void device_to_device(const at::Tensor& source, const at::Tensor& target) {
  auto dense = at::empty(target.sizes(), source.options().dtype(target.scalar_type())).copy_(source);
  auto moved = at::empty(target.sizes(), target.options());
  {
    py::gil_scoped_acquire gil;
    Cell& from = cell_of(dense);
    if (from.spec == kUnset) return;
    try {
      auto array = python_call("move_to", py::handle(array_of(from)), static_cast<int>(target.device().index()));
      set_array(cell_of(moved), array.release().ptr(), from.spec);
    } catch (py::error_already_set& error) {
      rethrow_python(error);
    }
  }
  target.copy_(moved);
}

// A conjugated or negated view shares its storage with the plain tensor; only copies apply the flag.
at::Tensor applied(const at::Tensor& tensor) {
  if (tensor.is_neg()) return at::neg(applied(tensor._neg_view()));
  if (tensor.is_conj()) return at::_conj_physical(tensor.conj());
  return tensor;
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& dst, bool non_blocking) {
  if (dst.is_neg()) {
    copy_from(self._neg_view(), dst._neg_view(), non_blocking);
    return dst;
  }
  if (dst.is_conj()) {
    copy_from(self.conj(), dst.conj(), non_blocking);
    return dst;
  }
  if (self.is_neg() || self.is_conj()) return copy_from(applied(self), dst, non_blocking);
  // PyTorch allows an unready CPU result only in pinned memory, which this device does not hand out:
  // every copy to the host is complete when it returns, whatever `non_blocking` says.
  ensure_initialized();
  if (dst.numel() == 0) return dst;
  if (self.device().type() == kDevice && dst.device().type() == kDevice) {
    if (self.device() != dst.device()) {
      device_to_device(self, dst);
      return dst;
    }
    static Operator& op = operator_for("aten::copy_", "");
    torch::jit::Stack stack{dst, self, non_blocking};
    run_operator(op, &stack);
  } else if (self.device().type() == kDevice) {
    device_to_host(self, dst);
  } else {
    host_to_device(self, dst);
  }
  return dst;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& dst) {
  dst.resize_(self.sizes());
  return copy_from(self, dst, false);
}

// Lazy conjugation and negation, and zeros without memory as forward-mode AD has them.
bool flagged(const at::Tensor& tensor) { return tensor.is_conj() || tensor.is_neg() || tensor._is_zerotensor(); }

// As one program instead of PyTorch's two steps, allocation and copy_. Flagged views take those steps: only
// copy_ applies the flags.
at::Tensor clone(const at::Tensor& self, c10::optional<at::MemoryFormat> format) {
  if (flagged(self) || self.numel() == 0) return at::native::clone(self, format);
  static Operator& op = operator_for("aten::clone", "");
  torch::jit::Stack stack{self, format};
  run_operator(op, &stack);
  return stack.back().toTensor();
}

at::Tensor to_copy(const at::Tensor& self, c10::optional<at::ScalarType> dtype, c10::optional<at::Layout> layout,
                   c10::optional<at::Device> device, c10::optional<bool> pin_memory, bool non_blocking,
                   c10::optional<at::MemoryFormat> format) {
  const bool moves = device && (device->type() != kDevice || (device->has_index() && *device != self.device()));
  // Dropping an imaginary part warns, which copy_ does.
  const bool warns = self.is_complex() && dtype && !c10::isComplexType(*dtype);
  if (moves || warns || layout || pin_memory || flagged(self) || self.numel() == 0) {
    return at::native::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
  }
  checked(dtype.value_or(self.scalar_type()));
  static Operator& op = operator_for("aten::_to_copy", "");
  torch::jit::Stack stack{self, dtype, c10::IValue(), c10::IValue(), c10::IValue(), non_blocking, format};
  run_operator(op, &stack);
  return stack.back().toTensor();
}

at::Scalar local_scalar_dense(const at::Tensor& self) {
  auto host = at::empty({}, self.options().device(at::kCPU));
  device_to_host(self.reshape({}), host);
  return host.item();
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_efficientzerotensor", &efficient_zero_tensor);
  m.impl("as_strided", &as_strided);
  m.impl("view", &view);
  m.impl("unfold", &unfold);
  m.impl("view_as_real", &view_as_real);
  m.impl("view_as_complex", &view_as_complex);
  m.impl("is_set_to", &is_set_to);
  m.impl("_reshape_alias", &reshape_alias);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("set_.source_Storage", &set_whole_storage);
  m.impl("set_.source_Tensor", &set_tensor);
  m.impl("set_", &set_empty);
  m.impl("resize_", &resize);
  m.impl("clone", &clone);
  m.impl("_to_copy", &to_copy);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar_dense);
}

// PyTorch's own rule would resolve the flag by a copy, which is this operator again.
TORCH_LIBRARY_IMPL(aten, Conjugate, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}
TORCH_LIBRARY_IMPL(aten, Negative, m) {
  m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace systolic
