#include "fused.h"

#include "python_side.h"

#include <frameobject.h>

namespace py = pybind11;

namespace systolic {
namespace {

// A group is run at this size at the latest: compiling takes time in proportion to it.
constexpr size_t kMaxNodes = 1024;

struct Node {
  const Entry* entry;
  std::vector<int32_t> inputs;  // n >= 0: input n of the group; n < 0: value -1-n of the group
  py::object code;              // where the user's program recorded it; null without a Python frame
  int instruction = -1;
};

struct Queue {
  std::string key;
  std::vector<Node> nodes;
  std::vector<Cell*> owners;         // of each value; null once nobody can read it
  std::vector<py::object> inputs;    // arrays that come from outside
  std::vector<uint8_t> from_cell;    // per input: was it a cell's array, which may be donated?
  std::unordered_map<PyObject*, int32_t> slots;
  bool running = false;

  int32_t add(py::object array, bool of_cell) {
    inputs.push_back(std::move(array));
    from_cell.push_back(of_cell);
    return static_cast<int32_t>(inputs.size() - 1);
  }
  int32_t slot(PyObject* array) {
    auto [place, inserted] = slots.emplace(array, static_cast<int32_t>(inputs.size()));
    return inserted ? add(py::reinterpret_borrow<py::object>(array), true) : place->second;
  }
};

bool mode = false;

Queue& queue_of(c10::DeviceIndex device) {
  static auto* queues = new Queue[kMaxDevices];
  return queues[device];
}

// Is this code PyTorch's or ours? Errors name the line of the user's program.
bool internal(PyCodeObject* code) {
  static auto* known = new std::unordered_map<PyCodeObject*, bool>;
  auto found = known->find(code);
  if (found != known->end()) return found->second;
  Py_INCREF(code);
  const bool answer = python_call("is_internal", py::handle(code->co_filename)).cast<bool>();
  return known->emplace(code, answer).first->second;
}

void note_line(Node& node) {
  PyFrameObject* frame = PyEval_GetFrame();
  Py_XINCREF(frame);
  while (frame) {
    auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(frame)));
    PyFrameObject* back = PyFrame_GetBack(frame);
    if (!internal(reinterpret_cast<PyCodeObject*>(code.ptr())) || !back) {
      node.code = std::move(code);
      node.instruction = PyFrame_GetLasti(frame);
      Py_DECREF(frame);
      Py_XDECREF(back);
      return;
    }
    Py_DECREF(frame);
    frame = back;
  }
}

void wait_for_value(Cell& cell, int32_t value, SpecId spec, Queue& queue) {
  forget(cell);
  PyObject* old = cell.array;
  cell.array = nullptr;
  cell.spec = spec;
  cell.pending = value;
  queue.owners.push_back(&cell);
  Py_XDECREF(old);
}

py::list describe(const Queue& queue) {
  py::list nodes;
  for (const auto& node : queue.nodes) {
    py::object line = py::none();
    if (node.code) line = py::int_(PyCode_Addr2Line(reinterpret_cast<PyCodeObject*>(node.code.ptr()), node.instruction));
    nodes.append(py::make_tuple(node.entry->description, node.inputs, node.code ? node.code : py::none(), line));
  }
  return nodes;
}

void run(Queue& queue, c10::DeviceIndex device, const std::vector<int32_t>& live) {
  static auto* programs = new std::unordered_map<std::string, py::object>;
  std::vector<uint8_t> donated;
  queue.slots.clear();
  for (size_t i = 0; i < queue.inputs.size(); ++i) {
    // Only this queue still knows the array: its cell was overwritten or freed.
    donated.push_back(queue.from_cell[i] && Py_REFCNT(queue.inputs[i].ptr()) == 1);
  }
  std::string key = queue.key;
  key.append(reinterpret_cast<const char*>(live.data()), live.size() * sizeof(int32_t));
  key.append(donated.begin(), donated.end());
  key.push_back(static_cast<char>(device));
  auto found = programs->find(key);
  if (found == programs->end()) {
    py::list arrays, donations;
    for (auto& array : queue.inputs) arrays.append(array);
    for (auto flag : donated) donations.append(bool(flag));
    auto program = python_call("build_group", describe(queue), live, arrays, donations, static_cast<int>(device));
    found = programs->emplace(std::move(key), std::move(program)).first;
  }
  std::vector<PyObject*> arguments{nullptr};
  for (auto& array : queue.inputs) arguments.push_back(array.ptr());
  // Its tensors were accounted when they were recorded.
  auto results = launch(found->second.ptr(), arguments.data() + 1, arguments.size() - 1, device, "fused group", 0);
  for (size_t i = 0; i < live.size(); ++i) {
    Cell* cell = queue.owners[live[i]];
    if (!cell) continue;  // freed while the program was started
    PyObject* array = PyTuple_GetItem(results.ptr(), static_cast<Py_ssize_t>(i));
    if (!array) throw py::error_already_set();
    Py_INCREF(array);
    cell->array = array;
    cell->pending = Cell::kReady;
  }
}

}  // namespace

bool fused() { return mode; }

void set_fused(bool on) { mode = on; }

void record(const Entry& entry, Gather& call, std::vector<at::Tensor>& created) {
  const auto device = call.device < 0 ? current_device() : call.device;
  LaunchTurn turn;
  Queue& queue = queue_of(device);
  Node node{&entry, {}, {}, -1};
  for (size_t i = 0; i < call.cells.size(); ++i) {
    if (!entry.reads[i]) continue;
    Cell& cell = *call.cells[i];
    node.inputs.push_back(cell.pending >= 0 ? -1 - cell.pending : queue.slot(array_of(cell)));
  }
  c10::SmallVector<py::object, 8> numbers;
  host_inputs(entry, call, device, numbers);
  for (auto& number : numbers) node.inputs.push_back(queue.add(std::move(number), false));
  note_line(node);
  const Entry* address = &entry;
  queue.key.append(reinterpret_cast<const char*>(&address), sizeof address);
  queue.key.append(reinterpret_cast<const char*>(node.inputs.data()), node.inputs.size() * sizeof(int32_t));
  queue.nodes.push_back(std::move(node));
  for (const auto& plan : entry.outputs) {
    if (plan.cell == OutputPlan::kUndefined) {
      created.emplace_back();
      continue;
    }
    const auto value = static_cast<int32_t>(queue.owners.size());
    if (plan.cell >= 0) {
      wait_for_value(*call.cells[plan.cell], value, plan.spec, queue);
    } else {
      auto tensor = new_tensor(plan.dtype, plan.sizes, plan.strides, device);
      wait_for_value(cell_of(tensor), value, plan.spec, queue);
      created.push_back(std::move(tensor));
    }
  }
  if (queue.nodes.size() >= kMaxNodes) flush(device);
}

void flush(c10::DeviceIndex device) {
  check_not_forked();
  LaunchTurn turn;
  Queue& queue = queue_of(device);
  if (queue.nodes.empty() || queue.running) return;
  queue.running = true;
  std::vector<int32_t> live;
  for (size_t i = 0; i < queue.owners.size(); ++i) {
    if (queue.owners[i]) live.push_back(static_cast<int32_t>(i));
  }
  struct Clear {
    Queue& queue;
    ~Clear() {
      for (Cell* cell : queue.owners) {
        if (cell && cell->pending >= 0) cell->pending = Cell::kLost;  // only after an error
      }
      queue = Queue();
    }
  } clear{queue};
  if (!live.empty()) run(queue, device, live);
}

PyObject* array_of(Cell& cell) {
  if (cell.pending >= 0) flush(cell.device);
  TORCH_CHECK(cell.pending != Cell::kLost,
              "this tensor has no value: the recorded operators that should have made it failed when they ran");
  return cell.array;
}

void forget(Cell& cell) {
  if (cell.pending >= 0) queue_of(cell.device).owners[cell.pending] = nullptr;
  cell.pending = Cell::kReady;
}

}  // namespace systolic
