// Compiled programs: looking one up by key, running it, storing its results.
#pragma once
#include "gather.h"

#include <memory>
#include <mutex>
#include <unordered_map>

namespace systolic {

struct OutputPlan {
  static constexpr int kUndefined = -2;  // an optional result that the call does not produce
  int cell = -1;  // >= 0: the result replaces this cell's array; -1: a new tensor
  SpecId spec = kUnset;
  at::ScalarType dtype = at::kFloat;
  std::vector<int64_t> sizes, strides;
};

// What systolic.device.build.build_entry returns for one key.
struct Entry {
  std::string name;                      // for profiles: the operator or the compiled graph
  mutable PyObject* callable = nullptr;  // null while only recorded: run_entry compiles it
  pybind11::object description;          // the Python object that this was read from
  std::vector<uint8_t> reads;    // per unique cell: is its array an input of the program?
  std::vector<uint8_t> donates;  // per unique cell: may the program overwrite the array?
  std::vector<OutputPlan> outputs;
  int random_offsets = 0;
  size_t created_bytes = 0;  // storage of the tensors that a run creates
};

// Programs of one operator or one compiled graph, by key.
struct ProgramCache {
  std::unordered_map<std::string, std::unique_ptr<Entry>> entries;
};

std::unique_ptr<Entry> parse_entry(const pybind11::object& description);

// Between reading a cell's array and storing its successor no other thread may donate that array, and JAX
// releases the GIL in between: launches take turns, and so does who only takes an array. Needs the GIL.
class LaunchTurn {
 public:
  LaunchTurn();
  ~LaunchTurn();
  LaunchTurn(const LaunchTurn&) = delete;

 private:
  static std::recursive_mutex& mutex();
};

// The inputs of a program that are no cells: offsets, numbers, the random state. Needs the GIL.
void host_inputs(const Entry& entry, const Gather& call, int device, c10::SmallVectorImpl<pybind11::object>& out);

// Call an executable; arguments[-1] is room that it may use. Returns its tuple of results. Needs the GIL.
// `name` is for profiles; throws torch.OutOfMemoryError if `created_bytes` have no room.
pybind11::object launch(PyObject* callable, PyObject** arguments, size_t count, int device, const std::string& name,
                        size_t created_bytes);

// Run: results that are new tensors are appended to `created` in order. Needs the GIL.
void run_entry(const Entry& entry, Gather& call, std::vector<at::Tensor>& created);

uint64_t launches();  // programs started by this process

}  // namespace systolic
