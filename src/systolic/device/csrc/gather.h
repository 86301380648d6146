// Walks the arguments of a call once: builds its cache key and collects the run-time inputs.
//
// The key holds everything a compiled program depends on: dtypes, sizes, strides, which arguments
// share a storage, static offsets, static arguments. Numbers of schema type Scalar and the offsets of
// contiguous views stay out of the key: they are run-time inputs, so a new value never recompiles.
#pragma once
#include "cell.h"
#include "python_side.h"

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include <string>

namespace systolic {

enum class ArgKind : uint8_t { Plain, Scalar, Generator, DType, Layout, MemoryFormat, Device };

struct HostNumber {  // a number passed to a program as a 0-d array
  at::ScalarType dtype;
  uint64_t bits[2];
};

struct Gather {
  std::string key;
  c10::SmallVector<Cell*, 8> cells;           // unique, in order of first appearance
  c10::SmallVector<at::Tensor, 8> tensors;    // every tpu tensor argument, in order
  c10::SmallVector<int, 8> tensor_cell;       // index into `cells` for each of `tensors`
  c10::SmallVector<int64_t, 4> offsets;       // run-time view offsets, in elements
  c10::SmallVector<HostNumber, 4> numbers;
  c10::optional<at::Generator> generator;
  c10::DeviceIndex device = -1;
  bool static_scalars = false;
  bool accepts_host_tensors = false;  // index operators take CPU index tensors, as on CUDA
  bool describing = false;            // second walk, after a miss: also build Python descriptions

  // Visit one argument; returns its description when `describing`, else a null object.
  pybind11::object visit(const c10::IValue& value, ArgKind kind);
  pybind11::object visit_tensor(const at::Tensor& tensor);
  pybind11::object visit_int(int64_t value);
  void clear();

 private:
  template <class T>
  void put(const T& value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  pybind11::object visit_number(const c10::IValue& value);
  pybind11::object visit_host_tensor(const at::Tensor& tensor);
};

// `fused_optimizer`: floats such as the learning rate are run-time numbers too.
ArgKind kind_of(const c10::Argument& argument, bool fused_optimizer = false);

}  // namespace systolic
