// What Python sees of the core: systolic.device._C.
#include "dispatch.h"
#include "fused.h"
#include "generator.h"
#include "python_side.h"

#include <torch/csrc/autograd/python_variable.h>

namespace py = pybind11;

namespace systolic {
namespace {

// A compiled graph: one trace, an executable per concrete signature of its arguments.
class Program {
 public:
  explicit Program(py::object builder) : builder_(std::move(builder)) {}

  // Build the executable for these arguments without running it. Other threads may build others meanwhile.
  void prepare(const py::list& arguments) {
    Gather gather;
    lookup(gather, arguments);
  }

  py::list call(const py::list& arguments) {
    Gather gather;
    const Entry& entry = lookup(gather, arguments);
    std::vector<at::Tensor> created;
    run_entry(entry, gather, created);
    py::list out;
    for (auto& tensor : created) out.append(py::reinterpret_steal<py::object>(THPVariable_Wrap(std::move(tensor))));
    return out;
  }

  size_t size() const { return cache_.entries.size(); }

 private:
  const Entry& lookup(Gather& gather, const py::list& arguments) {
    check_not_forked();
    walk(gather, arguments, nullptr);
    if (gather.device < 0) gather.device = current_device();
    gather.key.push_back(static_cast<char>(gather.device));
    auto found = cache_.entries.find(gather.key);
    if (found != cache_.entries.end()) return *found->second;
    Gather described;
    described.describing = true;
    py::list descriptions;
    walk(described, arguments, &descriptions);
    auto entry = parse_entry(builder_(descriptions, static_cast<int>(gather.device), py::bytes(gather.key)));
    return *cache_.entries.emplace(gather.key, std::move(entry)).first->second;
  }

  static void walk(Gather& gather, const py::list& arguments, py::list* descriptions) {
    for (auto item : arguments) {
      py::object described;
      if (THPVariable_Check(item.ptr())) {
        described = gather.visit_tensor(THPVariable_Unpack(item.ptr()));
      } else if (PyFloat_Check(item.ptr())) {
        // Symbolic floats are run-time numbers.
        described = gather.visit(c10::IValue(item.cast<double>()), ArgKind::Scalar);
      } else if (item.is_none()) {
        described = gather.visit(c10::IValue(), ArgKind::Plain);
      } else {
        described = gather.visit_int(item.cast<int64_t>());
      }
      if (descriptions) descriptions->append(described);
    }
  }

  py::object builder_;
  ProgramCache cache_;
};

py::object tensor_array(const at::Tensor& tensor) {
  PyObject* array = array_of(cell_of(tensor));
  return array ? py::reinterpret_borrow<py::object>(array) : py::none();
}

at::Tensor tensor_from_array(py::object array, const std::vector<int64_t>& shape, py::object dtype, int device) {
  ensure_initialized();
  const auto type = reinterpret_cast<THPDtype*>(dtype.ptr())->scalar_type;
  std::vector<int64_t> strides(shape.size());
  int64_t step = 1;
  for (int64_t i = static_cast<int64_t>(shape.size()) - 1; i >= 0; --i) {
    strides[i] = step;
    step *= std::max<int64_t>(shape[i], 1);
  }
  auto tensor = new_tensor(type, shape, strides, static_cast<c10::DeviceIndex>(device));
  set_array(cell_of(tensor), array.release().ptr(), intern_spec(type, shape));
  return tensor;
}

void replace_array(const at::Tensor& tensor, py::object array) {
  auto& cell = cell_of(tensor);
  set_array(cell, array.release().ptr(), intern_spec(tensor.scalar_type(), tensor.sizes()));
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  register_hooks();
  // pybind11 knows only standard exceptions: compiled graphs would raise RuntimeError.
  py::register_local_exception_translator([](std::exception_ptr pointer) {
    try {
      if (pointer) std::rethrow_exception(pointer);
    } catch (const c10::OutOfMemoryError& error) {
      PyErr_SetString(py::module_::import("torch").attr("OutOfMemoryError").ptr(), error.what_without_backtrace());
    }
  });
  py::class_<Program>(m, "Program").def(py::init<py::object>())
      .def("__call__", &Program::call)
      .def("prepare", &Program::prepare)
      .def("__len__", &Program::size);
  m.def("register_operator", &register_operator);
  m.def("list_operators", &list_operators);
  m.def("fallback_counts", &fallback_counts);
  m.def("forked", &forked);
  m.def("check_not_forked", &check_not_forked, "raise if this process was forked after the device was used");
  m.def("launches", &launches);
  m.def("memory_limit", [](int device) { return memory_limit(static_cast<c10::DeviceIndex>(device)); });
  m.def("set_memory_limit", [](int device, int64_t nbytes) {
    set_memory_limit(static_cast<c10::DeviceIndex>(device), nbytes);
  });
  m.def("array_of", &tensor_array, "the jax.Array in a tensor's storage, or None if it was never written");
  m.def("tensor_from_array", &tensor_from_array, "a tensor that owns a jax.Array");
  m.def("replace_array", &replace_array, "give a whole-storage contiguous tensor a new array");
  m.def("fused", &fused, "is the process in fused mode?");
  m.def("set_fused", &set_fused);
  m.def("flush", [](int device) { flush(static_cast<c10::DeviceIndex>(device)); }, "run what is recorded");
  m.def("default_generator", [](int device) { return default_generator(static_cast<c10::DeviceIndex>(device)); });
  m.def("current_device", [] { return int(current_device()); });
  m.def("exchange_device", [](int device) { return int(exchange_device(static_cast<c10::DeviceIndex>(device))); });
  m.def("ensure_initialized", &ensure_initialized, py::call_guard<py::gil_scoped_release>());
}

}  // namespace
}  // namespace systolic
