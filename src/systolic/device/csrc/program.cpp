#include "program.h"

#include "generator.h"
#include "profiler.h"
#include "python_side.h"

#include <mutex>
#include <thread>

namespace py = pybind11;

namespace systolic {
namespace {

uint64_t launch_count = 0;

// 0-d arrays for numbers seen before: building one costs as much as running a small program.
struct NumberKey {
  uint64_t bits[2];
  int dtype, device;
  bool operator==(const NumberKey& o) const { return std::memcmp(this, &o, sizeof(*this)) == 0; }
};
struct NumberHash {
  size_t operator()(const NumberKey& k) const {
    return k.bits[0] * 0x9E3779B97F4A7C15ull ^ (k.bits[1] + (uint64_t(k.dtype) << 8) + uint64_t(k.device));
  }
};
constexpr size_t kMaxNumbers = 8192;

PyObject* number_array(const HostNumber& number, int device) {  // borrowed for the duration of the call
  static auto* arrays = new std::unordered_map<NumberKey, py::object, NumberHash>;
  NumberKey key{};
  key.bits[0] = number.bits[0];
  key.bits[1] = number.bits[1];
  key.dtype = static_cast<int>(number.dtype);
  key.device = device;
  auto found = arrays->find(key);
  if (found != arrays->end()) return found->second.ptr();
  if (arrays->size() >= kMaxNumbers) arrays->clear();
  auto array = python_call("number_array", py::bytes(reinterpret_cast<const char*>(number.bits), 16),
                           static_cast<int>(number.dtype), device);
  return arrays->emplace(key, std::move(array)).first->second.ptr();
}

void wait_for_readers(const Cell& cell) {
  if (cell.readers.load() == 0) return;
  py::gil_scoped_release release;
  while (cell.readers.load() != 0) std::this_thread::yield();
}

// torch.profiler records: wait for the program, then note how long it took.
void record_launch(const std::string& name, int device, int64_t started, PyObject* results, size_t bytes) {
  const int64_t issued = profiler::now();
  if (PyTuple_GET_SIZE(results) > 0) {
    auto* done = PyObject_CallMethod(PyTuple_GET_ITEM(results, 0), "block_until_ready", nullptr);
    if (!done) throw py::error_already_set();
    Py_DECREF(done);
  }
  profiler::record(profiler::Kind::Program, name, device, started, issued, profiler::now(), bytes);
}

}  // namespace

LaunchTurn::LaunchTurn() {
  if (mutex().try_lock()) return;
  // The holder needs the GIL to finish.
  py::gil_scoped_release release;
  mutex().lock();
}

LaunchTurn::~LaunchTurn() { mutex().unlock(); }

std::recursive_mutex& LaunchTurn::mutex() {
  static auto* instance = new std::recursive_mutex;
  return *instance;
}

uint64_t launches() { return launch_count; }

std::unique_ptr<Entry> parse_entry(const py::object& description) {
  auto entry = std::make_unique<Entry>();
  entry->name = description.attr("name").cast<std::string>();
  py::object callable = description.attr("callable");
  if (!callable.is_none()) entry->callable = callable.release().ptr();
  entry->description = description;
  for (auto flag : description.attr("reads")) entry->reads.push_back(flag.cast<bool>());
  for (auto flag : description.attr("donates")) entry->donates.push_back(flag.cast<bool>());
  entry->random_offsets = description.attr("random_offsets").cast<int>();
  for (auto item : description.attr("outputs")) {
    OutputPlan plan;
    plan.cell = item.attr("cell").cast<int>();
    plan.dtype = reinterpret_cast<THPDtype*>(py::object(item.attr("dtype")).ptr())->scalar_type;
    plan.sizes = item.attr("sizes").cast<std::vector<int64_t>>();
    plan.strides = item.attr("strides").cast<std::vector<int64_t>>();
    auto stored_dtype = reinterpret_cast<THPDtype*>(py::object(item.attr("stored_dtype")).ptr())->scalar_type;
    plan.spec = intern_spec(stored_dtype, item.attr("stored_shape").cast<std::vector<int64_t>>());
    if (plan.cell == -1) {
      entry->created_bytes +=
          at::detail::computeStorageNbytes(plan.sizes, plan.strides, c10::elementSize(plan.dtype));
    }
    entry->outputs.push_back(std::move(plan));
  }
  return entry;
}

void host_inputs(const Entry& entry, const Gather& call, int device, c10::SmallVectorImpl<py::object>& out) {
  for (const int64_t offset : call.offsets) {
    HostNumber number{at::kLong, {0, 0}};
    std::memcpy(number.bits, &offset, sizeof offset);
    out.push_back(py::reinterpret_borrow<py::object>(number_array(number, device)));
  }
  for (const auto& number : call.numbers) {
    out.push_back(py::reinterpret_borrow<py::object>(number_array(number, device)));
  }
  if (entry.random_offsets > 0) {
    auto generator = call.generator.has_value() && call.generator->defined() ? *call.generator
                                                                             : default_generator(device);
    auto* state = at::check_generator<Generator>(generator);
    std::lock_guard<std::mutex> lock(state->mutex_);
    const uint64_t first = state->take(entry.random_offsets);
    out.push_back(python_call("random_state", state->current_seed(), first, device));
  }
}

py::object launch(PyObject* callable, PyObject** arguments, size_t count, int device, const std::string& name,
                  size_t created_bytes) {
  check_room(static_cast<c10::DeviceIndex>(device), created_bytes);
  const bool profiled = profiler::active();
  const int64_t started = profiled ? profiler::now() : 0;
  PyObject* raw = PyObject_Vectorcall(callable, arguments, count | PY_VECTORCALL_ARGUMENTS_OFFSET, nullptr);
  if (!raw) {
    py::error_already_set error;
    throw_if_exhausted(error, static_cast<c10::DeviceIndex>(device), created_bytes);
    throw error;
  }
  ++launch_count;
  auto results = py::reinterpret_steal<py::object>(raw);
  TORCH_INTERNAL_ASSERT(PyTuple_CheckExact(raw));
  if (profiled) record_launch(name, device, started, raw, created_bytes);
  if (PyTuple_GET_SIZE(raw) == 0) return results;
  // Every result of one program becomes ready together: one is enough to wait for. Small programs on
  // XLA:CPU have finished by now and need no note.
  static auto* is_ready = PyUnicode_InternFromString("is_ready");
  PyObject* ready = PyObject_CallMethodNoArgs(PyTuple_GET_ITEM(raw, 0), is_ready);
  if (!ready) throw py::error_already_set();
  Py_DECREF(ready);
  if (ready != Py_True) {
    static auto* note = new py::object(python_function("note_launch"));
    (*note)(py::handle(PyTuple_GET_ITEM(raw, 0)), device);
  }
  return results;
}

void run_entry(const Entry& entry, Gather& call, std::vector<at::Tensor>& created) {
  const int device = call.device < 0 ? current_device() : call.device;
  LaunchTurn turn;
  if (!entry.callable) entry.callable = py::object(entry.description.attr("compiled")()).release().ptr();
  c10::SmallVector<PyObject*, 64> arguments;
  arguments.push_back(nullptr);  // room that vectorcall may use
  for (size_t i = 0; i < call.cells.size(); ++i) {
    if (!entry.reads[i]) continue;
    if (entry.donates[i]) wait_for_readers(*call.cells[i]);
    arguments.push_back(array_of(*call.cells[i]));
  }
  // Scalars that are not cached by value must live until the call returns.
  c10::SmallVector<py::object, 8> keep;
  host_inputs(entry, call, device, keep);
  for (auto& value : keep) arguments.push_back(value.ptr());
  auto results = launch(entry.callable, arguments.data() + 1, arguments.size() - 1, device, entry.name,
                        entry.created_bytes);
  Py_ssize_t next = 0;
  for (const auto& plan : entry.outputs) {
    if (plan.cell == OutputPlan::kUndefined) {
      created.emplace_back();
      continue;
    }
    PyObject* array = PyTuple_GetItem(results.ptr(), next++);
    if (!array) throw py::error_already_set();
    Py_INCREF(array);
    if (plan.cell >= 0) {
      set_array(*call.cells[plan.cell], array, plan.spec);
    } else {
      auto tensor = new_tensor(plan.dtype, plan.sizes, plan.strides, static_cast<c10::DeviceIndex>(device));
      set_array(cell_of(tensor), array, plan.spec);
      created.push_back(std::move(tensor));
    }
  }
  TORCH_INTERNAL_ASSERT(next == PyTuple_GET_SIZE(results.ptr()));
}

}  // namespace systolic
