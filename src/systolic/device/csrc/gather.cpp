#include "gather.h"

#include "python_side.h"

#include <torch/csrc/DynamicTypes.h>
#include <torch/csrc/jit/python/pybind_utils.h>
#include <torch/csrc/utils/tensor_dtypes.h>
#include <torch/csrc/utils/tensor_memoryformats.h>

namespace py = pybind11;

namespace systolic {
namespace {

py::object dtype_object(at::ScalarType dtype) {
  return py::reinterpret_borrow<py::object>(reinterpret_cast<PyObject*>(torch::getTHPDtype(dtype)));
}

py::tuple ints(c10::IntArrayRef values) {
  py::tuple out(values.size());
  for (size_t i = 0; i < values.size(); ++i) out[i] = py::int_(values[i]);
  return out;
}

}  // namespace

ArgKind kind_of(const c10::Argument& argument, bool fused_optimizer) {
  c10::TypePtr type = argument.real_type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (auto list = type->cast<c10::ListType>()) {
    return list->getElementType()->kind() == c10::TypeKind::NumberType ? ArgKind::Scalar : ArgKind::Plain;
  }
  if (fused_optimizer && type->kind() == c10::TypeKind::FloatType) return ArgKind::Scalar;
  switch (type->kind()) {
    case c10::TypeKind::NumberType: return ArgKind::Scalar;
    case c10::TypeKind::GeneratorType: return ArgKind::Generator;
    case c10::TypeKind::ScalarTypeType: return ArgKind::DType;
    case c10::TypeKind::LayoutType: return ArgKind::Layout;
    case c10::TypeKind::MemoryFormatType: return ArgKind::MemoryFormat;
    case c10::TypeKind::DeviceObjType: return ArgKind::Device;
    default: return ArgKind::Plain;
  }
}

void Gather::clear() {
  key.clear();
  cells.clear();
  tensors.clear();
  tensor_cell.clear();
  offsets.clear();
  numbers.clear();
  generator.reset();
  device = -1;
}

py::object Gather::visit_int(int64_t value) {
  key.push_back('i');
  put(value);
  return describing ? py::object(py::int_(value)) : py::object();
}

py::object Gather::visit_number(const c10::IValue& value) {
  HostNumber number{at::kDouble, {0, 0}};
  const char* kind = "float";
  if (value.isDouble()) {
    const double x = value.toDouble();
    std::memcpy(number.bits, &x, sizeof x);
  } else if (value.isBool()) {
    number.dtype = at::kBool;
    number.bits[0] = value.toBool();
    kind = "bool";
  } else if (value.isComplexDouble()) {
    const auto x = value.toComplexDouble();
    number.dtype = at::kComplexDouble;
    std::memcpy(number.bits, &x, sizeof x);
    kind = "complex";
  } else {
    number.dtype = at::kLong;
    const int64_t x = value.isInt() ? value.toInt() : value.toSymInt().guard_int(__FILE__, __LINE__);
    std::memcpy(number.bits, &x, sizeof x);
    kind = "int";
  }
  key.push_back('n');
  key.push_back(static_cast<char>(number.dtype));
  if (static_scalars) {
    put(number.bits);
    return describing ? torch::jit::toPyObject(value) : py::object();
  }
  numbers.push_back(number);
  if (!describing) return {};
  return py::make_tuple("number", numbers.size() - 1, kind, torch::jit::toPyObject(value));
}

py::object Gather::visit_host_tensor(const at::Tensor& tensor) {
  if (tensor.dim() == 0) {
    HostNumber number{tensor.scalar_type(), {0, 0}};
    std::memcpy(number.bits, tensor.const_data_ptr(), tensor.itemsize());
    const bool wrapped = tensor.unsafeGetTensorImpl()->is_wrapped_number();
    key.push_back('h');
    key.push_back(static_cast<char>(number.dtype));
    key.push_back(static_cast<char>(wrapped));
    numbers.push_back(number);
    if (!describing) return {};
    return py::make_tuple("host", numbers.size() - 1, dtype_object(number.dtype), wrapped,
                          torch::jit::toPyObject(c10::IValue(tensor)));
  }
  TORCH_CHECK(accepts_host_tensors,
              "Expected all tensors to be on the same device, but found at least two devices, tpu:",
              int(device < 0 ? current_device() : device), " and ", tensor.device().str(), "! Move the ",
              tensor.device().str(), " tensor with .to(\"tpu\")");
  return visit_tensor(tensor.to(c10::Device(kDevice, device < 0 ? current_device() : device)));
}

py::object Gather::visit_tensor(const at::Tensor& tensor) {
  if (!tensor.defined()) {
    key.push_back('u');
    return describing ? py::object(py::none()) : py::object();
  }
  if (tensor.device().type() != kDevice) return visit_host_tensor(tensor);
  // Zeros without memory, which PyTorch hands to the few operators that treat them by themselves on the CPU.
  if (tensor._is_zerotensor()) return visit_tensor(at::zeros(tensor.sizes(), tensor.options()));
  if (device < 0) {
    device = tensor.device().index();
  } else {
    TORCH_CHECK(device == tensor.device().index(),
                "Expected all tensors to be on the same device, but found at least two devices, tpu:", int(device),
                " and tpu:", int(tensor.device().index()), "!");
  }
  Cell& cell = cell_of(tensor);
  int index = 0;
  for (; index < static_cast<int>(cells.size()); ++index) {
    if (cells[index] == &cell) break;
  }
  if (index == static_cast<int>(cells.size())) cells.push_back(&cell);
  tensors.push_back(tensor);
  tensor_cell.push_back(index);

  const auto* impl = tensor.unsafeGetTensorImpl();
  const auto sizes = impl->sizes();
  const auto strides = impl->strides();
  const auto dtype = tensor.scalar_type();
  const int64_t offset = impl->storage_offset();
  const size_t used = static_cast<size_t>(impl->numel()) * tensor.itemsize();
  const bool contiguous = impl->is_contiguous();
  const bool whole = contiguous && offset == 0 && used == cell.nbytes;
  const bool moving = contiguous && !whole && impl->numel() > 0;

  key.push_back('t');
  put(index);
  put(cell.spec);
  key.push_back(static_cast<char>(dtype));
  const int lazy = (tensor.is_neg() ? 2 : 0) | (tensor.is_conj() ? 1 : 0);
  key.push_back(static_cast<char>(lazy));
  key.push_back(static_cast<char>(sizes.size()));
  key.append(reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(int64_t));
  if (contiguous) {
    key.push_back(whole ? 'w' : 'c');
    if (!whole) put(cell.nbytes);
  } else {
    key.push_back('s');
    key.append(reinterpret_cast<const char*>(strides.data()), strides.size() * sizeof(int64_t));
    put(offset);
    put(cell.nbytes);
  }
  if (moving) offsets.push_back(offset);
  if (!describing) return {};
  py::object stored = py::none();
  if (cell.spec != kUnset) {
    const auto& spec = spec_of(cell.spec);
    stored = py::make_tuple(dtype_object(spec.dtype), ints(spec.shape));
  }
  py::object where = moving ? py::object(py::make_tuple("moving", offsets.size() - 1))
                            : py::object(py::make_tuple("fixed", offset));
  return py::make_tuple("tensor", index, stored, dtype_object(dtype), ints(sizes), ints(strides), where,
                        cell.nbytes, lazy);
}

py::object Gather::visit(const c10::IValue& value, ArgKind kind) {
  if (value.isTensor()) return visit_tensor(value.toTensor());
  if (value.isNone()) {
    key.push_back('0');
    return describing ? py::object(py::none()) : py::object();
  }
  switch (kind) {
    case ArgKind::Scalar:
      if (!value.isList()) return visit_number(value);
      break;
    case ArgKind::Generator:
      generator = value.toGenerator();
      key.push_back('g');
      return describing ? py::object(py::none()) : py::object();
    case ArgKind::DType:
      visit_int(value.toInt());
      return describing ? dtype_object(static_cast<at::ScalarType>(value.toInt())) : py::object();
    case ArgKind::MemoryFormat: {
      visit_int(value.toInt());
      if (!describing) return {};
      return py::reinterpret_borrow<py::object>(
          torch::utils::getTHPMemoryFormat(static_cast<at::MemoryFormat>(value.toInt())));
    }
    case ArgKind::Layout:
      visit_int(value.toInt());
      return describing ? py::object(py::none()) : py::object();
    case ArgKind::Device:
      if (device < 0 && value.toDevice().type() == kDevice) {
        device = value.toDevice().has_index() ? value.toDevice().index() : current_device();
      }
      return describing ? py::object(py::none()) : py::object();
    case ArgKind::Plain: break;
  }
  if (value.isInt()) return visit_int(value.toInt());
  if (value.isSymInt()) return visit_int(value.toSymInt().guard_int(__FILE__, __LINE__));
  if (value.isDouble()) {
    key.push_back('d');
    put(value.toDouble());
  } else if (value.isBool()) {
    key.push_back(value.toBool() ? 'T' : 'F');
  } else if (value.isString()) {
    key.push_back('S');
    put(value.toStringRef().size());
    key.append(value.toStringRef());
  } else if (value.isComplexDouble()) {
    key.push_back('z');
    put(value.toComplexDouble());
  } else if (value.isList()) {
    const auto list = value.toListRef();
    key.push_back('[');
    put(list.size());
    py::list described;
    for (const auto& element : list) {
      auto item = visit(element, kind);
      if (describing) described.append(item);
    }
    return describing ? py::object(described) : py::object();
  } else {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "tpu operators cannot take an argument of kind ", value.tagKind());
  }
  return describing ? torch::jit::toPyObject(value) : py::object();
}

}  // namespace systolic
