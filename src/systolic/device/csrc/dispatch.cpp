#include "dispatch.h"

#include "fused.h"
#include "python_side.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/native/CPUFallback.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include <map>

namespace py = pybind11;

namespace systolic {
namespace {

std::map<std::string, int64_t>& counts() {
  static auto* map = new std::map<std::string, int64_t>;
  return *map;
}

bool is_index_operator(const std::string& name) {
  return name == "aten::index" || name == "aten::index_put" || name == "aten::index_put_" ||
         name == "aten::_index_put_impl_" || name == "aten::_unsafe_index" || name == "aten::_unsafe_index_put";
}

// Their floats change from step to step (a scheduled learning rate): a program per value would never end.
bool is_fused_optimizer(const std::string& name) {
  for (const char* prefix : {"aten::_fused_ada", "aten::_fused_sgd", "aten::_amp_update_scale"}) {
    if (name.rfind(prefix, 0) == 0) return true;
  }
  return false;
}

// A mask selects a number of elements that only its values tell, so no key can describe it: Python turns
// it into positions. False where the operator's own program can use the mask, or where there is none.
bool index_by_mask(const Operator& op, torch::jit::Stack* stack, size_t first) {
  bool masked = false;
  for (const auto& item : (*stack)[first + 1].toListRef()) {
    if (!item.isTensor() || !item.toTensor().defined()) continue;
    const auto dtype = item.toTensor().scalar_type();
    masked |= dtype == at::kBool || dtype == at::kByte;
  }
  if (!masked) return false;
  py::gil_scoped_acquire gil;
  try {
    const auto& name = op.handle.operator_name();
    py::list arguments;
    for (size_t i = 0; i < op.kinds.size(); ++i) arguments.append(torch::jit::toPyObject((*stack)[first + i]));
    auto result = python_call("index_by_mask", name.name, name.overload_name, *arguments);
    if (result.is_none()) return false;
    torch::jit::drop(*stack, op.kinds.size());
    stack->push_back(THPVariable_Unpack(result.ptr()));
  } catch (py::error_already_set& error) {
    rethrow_python(error);
  }
  return true;
}

// On a miss: describe the call to Python, which lowers and compiles it. Null when the out= arguments had
// other sizes than the results: they were resized, and the call has another key now.
const Entry* compile(Operator& op, Gather& call, const torch::jit::Stack& stack, size_t first) {
  Gather described;
  described.static_scalars = op.static_scalars;
  described.accepts_host_tensors = op.accepts_host_tensors;
  described.describing = true;
  py::list arguments;
  for (size_t i = 0; i < op.kinds.size(); ++i) arguments.append(described.visit(stack[first + i], op.kinds[i]));
  const auto& name = op.handle.operator_name();
  auto description = python_call("build_operator", name.name, name.overload_name, arguments,
                                 static_cast<int>(call.device < 0 ? current_device() : call.device),
                                 py::bytes(call.key), !fused());
  if (py::isinstance<py::list>(description)) {
    at::AutoDispatchBelowADInplaceOrView below;
    for (auto item : description.cast<py::list>()) {
      auto [position, sizes] = item.cast<std::pair<size_t, std::vector<int64_t>>>();
      stack[first + position].toTensor().resize_(sizes);
    }
    return nullptr;
  }
  auto entry = parse_entry(description);
  return op.cache.entries.emplace(call.key, std::move(entry)).first->second.get();
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  ensure_initialized();
  const auto& name = op.operator_name();
  const auto full = c10::toString(name);
  {
    py::gil_scoped_acquire gil;
    if (++counts()[full] == 1) {
      try {
        python_call("warn_fallback", full);
      } catch (py::error_already_set& error) {
        rethrow_python(error);
      }
    }
  }
  at::native::cpu_fallback(op, stack);
}

// Offsets of contiguous views are not in the key, so this cannot be left to the compilation.
void check_overlap(const Operator& op, const torch::jit::Stack& stack, size_t first) {
  for (const size_t target : op.written) {
    if (!stack[first + target].isTensor()) continue;
    for (size_t i = 0; i < op.kinds.size(); ++i) {
      if (i == target || !stack[first + i].isTensor()) continue;
      const auto &a = stack[first + target].toTensor(), &b = stack[first + i].toTensor();
      if (a.defined() && b.defined()) at::assert_no_partial_overlap(a, b);
    }
  }
}

struct Kernel final : c10::OperatorKernel {
  explicit Kernel(std::shared_ptr<Operator> op) : op_(std::move(op)) {}
  void operator()(const c10::OperatorHandle&, c10::DispatchKeySet, torch::jit::Stack* stack) {
    run_operator(*op_, stack);
  }
  std::shared_ptr<Operator> op_;
};

std::map<std::pair<std::string, std::string>, std::shared_ptr<Operator>>& operators() {
  static auto* map = new std::map<std::pair<std::string, std::string>, std::shared_ptr<Operator>>;
  return *map;
}

torch::Library& library() {
  static auto* lib = new torch::Library(torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__);
  return *lib;
}

}  // namespace

Operator::Operator(const c10::OperatorHandle& op, bool static_scalars_in)
    : handle(op), static_scalars(static_scalars_in) {
  const auto& schema = op.schema();
  accepts_host_tensors = is_index_operator(schema.name());
  const bool fused = is_fused_optimizer(schema.name());
  for (const auto& argument : schema.arguments()) {
    if (argument.alias_info() && argument.alias_info()->isWrite()) written.push_back(kinds.size());
    kinds.push_back(kind_of(argument, fused));
  }
  for (const auto& result : schema.returns()) {
    int alias = -1;
    if (result.alias_info() && result.alias_info()->isWrite()) {
      for (size_t i = 0; i < schema.arguments().size(); ++i) {
        const auto* info = schema.arguments()[i].alias_info();
        if (info && info->isWrite() && info->beforeSets() == result.alias_info()->beforeSets()) {
          alias = static_cast<int>(i);
        }
      }
    }
    return_alias.push_back(alias);
    return_list.push_back(result.type()->kind() == c10::TypeKind::ListType);
  }
}

void run_operator(Operator& op, torch::jit::Stack* stack) {
  const size_t count = op.kinds.size();
  const size_t first = stack->size() - count;
  check_not_forked();
  if (op.accepts_host_tensors && index_by_mask(op, stack, first)) return;
  std::vector<at::Tensor> created;
  {
    py::gil_scoped_acquire gil;
    thread_local Gather reusable;
    thread_local bool busy = false;
    Gather local;
    // A nested call on this thread (a lowering that runs operators) must not share the buffers.
    Gather& call = busy ? local : reusable;
    struct Busy {
      bool& flag;
      bool previous;
      ~Busy() { flag = previous; }
    } guard{busy, busy};
    busy = true;
    call.clear();
    call.static_scalars = op.static_scalars;
    call.accepts_host_tensors = op.accepts_host_tensors;
    for (size_t i = 0; i < count; ++i) call.visit((*stack)[first + i], op.kinds[i]);
    if (!op.written.empty() && call.tensors.size() > call.cells.size()) check_overlap(op, *stack, first);
    if (call.device < 0) call.device = current_device();
    TORCH_CHECK(call.device < device_count(), "tpu:", int(call.device), " does not exist: this process has ",
                int(device_count()), " tpu device(s). On a machine without a TPU, ",
                "XLA_FLAGS=--xla_force_host_platform_device_count=N gives N.");
    call.key.push_back(static_cast<char>(call.device));
    try {
      auto found = op.cache.entries.find(call.key);
      const Entry* entry =
          found != op.cache.entries.end() ? found->second.get() : compile(op, call, *stack, first);
      if (!entry) {
        call.clear();
        return run_operator(op, stack);
      }
      fused() ? record(*entry, call, created) : run_entry(*entry, call, created);
    } catch (py::error_already_set& error) {
      call.clear();
      rethrow_python(error);
    } catch (...) {
      call.clear();  // the arguments must not stay alive until the next call
      throw;
    }
    call.clear();
  }
  torch::jit::Stack results;
  size_t next = 0;
  for (size_t i = 0; i < op.return_alias.size(); ++i) {
    if (op.return_alias[i] >= 0) {
      results.push_back((*stack)[first + op.return_alias[i]]);
    } else if (op.return_list[i]) {
      std::vector<at::Tensor> list(created.begin() + next, created.end());
      next = created.size();
      results.emplace_back(std::move(list));
    } else {
      results.emplace_back(created.at(next++));
    }
  }
  torch::jit::drop(*stack, count);
  for (auto& result : results) stack->push_back(std::move(result));
}

void register_operator(const std::string& name, const std::string& overload, bool static_scalars) {
  auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name.c_str(), overload.c_str());
  auto op = std::make_shared<Operator>(handle, static_scalars);
  operators()[{name, overload}] = op;
  const auto qualified = overload.empty() ? name : name + "." + overload;
  library().impl(qualified.c_str(), torch::CppFunction::makeFromBoxedFunctor(std::make_unique<Kernel>(op)));
}

Operator& operator_for(const char* name, const char* overload) {
  ensure_initialized();
  auto& op = operators()[{name, overload}];
  if (!op) {
    auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
    op = std::make_shared<Operator>(handle, false);
  }
  return *op;
}

py::list list_operators() {
  py::list out;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const auto& name : dispatcher.getAllOpNames()) {
    if (name.name.compare(0, 6, "aten::") != 0) continue;
    auto handle = dispatcher.findSchema(name);
    if (!handle) continue;
    const bool implicit = handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
    const bool explicit_ = handle->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd);
    const bool registered = handle->hasKernelForDispatchKey(c10::DispatchKey::PrivateUse1);
    out.append(py::make_tuple(name.name.substr(6), name.overload_name, implicit, explicit_, registered));
  }
  return out;
}

py::dict fallback_counts() {
  py::dict out;
  for (const auto& [name, count] : counts()) out[py::str(name)] = count;
  return out;
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace systolic
