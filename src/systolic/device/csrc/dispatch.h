// Operator dispatch: the boxed kernel behind every operator of the table, and the CPU fallback.
#pragma once
#include "program.h"

#include <ATen/core/dispatch/Dispatcher.h>

namespace systolic {

// Everything about one operator overload that does not change between calls.
struct Operator {
  explicit Operator(const c10::OperatorHandle& handle, bool static_scalars);
  c10::OperatorHandle handle;
  std::vector<ArgKind> kinds;
  std::vector<int> return_alias;  // per return: index of the argument it aliases, or -1
  std::vector<uint8_t> return_list;
  std::vector<size_t> written;  // positions of the tensor arguments that the operator writes
  bool static_scalars;
  bool accepts_host_tensors;
  ProgramCache cache;
};

void run_operator(Operator& op, torch::jit::Stack* stack);

// Register a boxed kernel for `name.overload`, lowered through Python.
void register_operator(const std::string& name, const std::string& overload, bool static_scalars);
// Names of all ATen operators with the dispatch facts that registration needs.
pybind11::list list_operators();

Operator& operator_for(const char* name, const char* overload);

pybind11::dict fallback_counts();

}  // namespace systolic
