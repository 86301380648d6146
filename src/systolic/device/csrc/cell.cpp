#include "cell.h"

#include "python_side.h"

#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <unordered_map>

namespace systolic {
namespace {

std::mutex spec_mutex;
// Deque-like stable storage: references handed out by spec_of stay valid.
std::vector<std::unique_ptr<Spec>> specs;
std::unordered_map<std::string, SpecId> spec_ids;

struct DeviceBytes {
  std::atomic<int64_t> current{0}, peak{0}, allocated{0}, freed{0}, count{0}, count_peak{0}, count_allocated{0};
  std::atomic<int64_t> limit{0}, ooms{0};  // limit 0: not asked for yet
};
DeviceBytes usage[kMaxDevices];

void raise_to(std::atomic<int64_t>& peak, int64_t value) {
  int64_t seen = peak;
  while (value > seen && !peak.compare_exchange_weak(seen, value)) {
  }
}

void account(c10::DeviceIndex device, int64_t delta) {
  auto& u = usage[device];
  const int64_t now = u.current += delta;
  if (delta > 0) {
    u.allocated += delta;
    raise_to(u.peak, now);
  } else {
    u.freed -= delta;
  }
}

void count_storage(c10::DeviceIndex device, int64_t delta) {
  auto& u = usage[device];
  const int64_t now = u.count += delta;
  if (delta < 0) return;
  u.count_allocated += delta;
  raise_to(u.count_peak, now);
}

std::string in_units(int64_t nbytes) {
  constexpr double kKiB = 1 << 10, kMiB = 1 << 20, kGiB = 1 << 30;
  char text[48];
  if (nbytes >= kGiB) {
    std::snprintf(text, sizeof text, "%.2f GiB", nbytes / kGiB);
  } else if (nbytes >= kMiB) {
    std::snprintf(text, sizeof text, "%.2f MiB", nbytes / kMiB);
  } else if (nbytes >= kKiB) {
    std::snprintf(text, sizeof text, "%.2f KiB", nbytes / kKiB);
  } else {
    std::snprintf(text, sizeof text, "%lld bytes", static_cast<long long>(nbytes));
  }
  return text;
}

[[noreturn]] void out_of_memory(c10::DeviceIndex device, size_t nbytes, const std::string& cause) {
  auto& u = usage[device];
  u.ooms += 1;
  TORCH_CHECK_WITH(OutOfMemoryError, false, "tpu:", int(device), " is out of memory: tried to allocate ",
                   in_units(static_cast<int64_t>(nbytes)), " while ", in_units(u.current), " are in use and the limit is ",
                   in_units(u.limit), ". ", cause,
                   "Free tensors, use smaller batches or raise torch.tpu.set_per_process_memory_fraction; "
                   "torch.tpu.memory_summary() shows what is in use.");
  std::abort();  // not reached
}

// Cells by address, for tensors made from a bare pointer, as PyTorch's serialization makes them.
std::mutex address_mutex;
std::unordered_map<uintptr_t, Cell*> cell_at;

void delete_cell(void* context) {
  auto* cell = static_cast<Cell*>(context);
  if (forked()) return;  // the parent's memory: neither its locks nor its arrays work here
  {
    std::lock_guard<std::mutex> lock(address_mutex);
    cell_at.erase(cell->address);
  }
  account(cell->device, -static_cast<int64_t>(cell->nbytes));
  count_storage(cell->device, -1);
  if (cell->pending >= 0) {
    pybind11::gil_scoped_acquire gil;
    forget(*cell);
  }
  // At interpreter exit the array goes with the process.
  if (cell->array && Py_IsInitialized() && !interpreter_is_finalizing()) {
    pybind11::gil_scoped_acquire gil;
    Py_DECREF(cell->array);
  }
  delete cell;
}

// Addresses are never dereferenced; they only have to be unique and to move with view offsets.
std::atomic<uintptr_t> next_address{uintptr_t(1) << 44};

c10::DataPtr make_data(size_t nbytes, c10::DeviceIndex device) {
  check_room(device, nbytes);
  auto* cell = new Cell;
  cell->device = device;
  cell->nbytes = nbytes;
  account(device, static_cast<int64_t>(nbytes));
  count_storage(device, 1);
  const auto address = next_address.fetch_add((nbytes + 512) & ~size_t(255));
  cell->address = address;
  {
    std::lock_guard<std::mutex> lock(address_mutex);
    cell_at.emplace(address, cell);
  }
  return {reinterpret_cast<void*>(address), cell, &delete_cell, c10::Device(kDevice, device)};
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t nbytes) override { return make_data(nbytes, current_device()); }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, size_t) const override {
    TORCH_CHECK(false, "tpu storages cannot be copied by address; use copy_");
  }
  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {}
  void recordStream(const c10::DataPtr&, c10::Stream) override {}
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(c10::DeviceIndex device) override {
    c10::CachingDeviceAllocator::DeviceStats stats;
    const auto& u = usage[device];
    auto& bytes = stats.allocated_bytes[0];
    bytes.current = u.current;
    bytes.peak = u.peak;
    bytes.allocated = u.allocated;
    bytes.freed = u.freed;
    stats.reserved_bytes[0] = bytes;
    stats.active_bytes[0] = bytes;
    stats.requested_bytes[0] = bytes;
    auto& storages = stats.allocation[0];
    storages.current = u.count;
    storages.peak = u.count_peak;
    storages.allocated = u.count_allocated;
    storages.freed = u.count_allocated - u.count;
    stats.num_ooms = u.ooms;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    usage[device].allocated = 0;
    usage[device].freed = 0;
    usage[device].count_allocated = usage[device].count.load();
    usage[device].ooms = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    usage[device].peak = usage[device].current.load();
    usage[device].count_peak = usage[device].count.load();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    pybind11::gil_scoped_acquire gil;
    return python_call("memory_info", device).cast<std::pair<size_t, size_t>>();
  }
};

Allocator the_allocator;
REGISTER_ALLOCATOR(kDevice, &the_allocator);

}  // namespace

c10::DeviceAllocator& allocator() { return the_allocator; }

int64_t memory_limit(c10::DeviceIndex device) {
  auto& u = usage[device];
  if (u.limit == 0) {
    pybind11::gil_scoped_acquire gil;
    try {
      u.limit = python_call("memory_info", device).cast<std::pair<int64_t, int64_t>>().second;
    } catch (pybind11::error_already_set& error) {
      rethrow_python(error);
    }
  }
  return u.limit;
}

void set_memory_limit(c10::DeviceIndex device, int64_t nbytes) { usage[device].limit = nbytes; }

void check_room(c10::DeviceIndex device, size_t nbytes) {
  if (nbytes == 0) return;
  const int64_t limit = memory_limit(device);
  if (static_cast<int64_t>(nbytes) > limit - usage[device].current) out_of_memory(device, nbytes, "");
}

void throw_if_exhausted(const pybind11::error_already_set& error, c10::DeviceIndex device, size_t nbytes) {
  const std::string words = error.what();
  if (words.find("RESOURCE_EXHAUSTED") == std::string::npos) return;
  memory_limit(device);
  out_of_memory(device, nbytes, "XLA says: " + words.substr(0, words.find('\n')) + " ");
}

SpecId intern_spec(at::ScalarType dtype, c10::IntArrayRef shape) {
  std::string key(reinterpret_cast<const char*>(shape.data()), shape.size() * sizeof(int64_t));
  key.push_back(static_cast<char>(dtype));
  std::lock_guard<std::mutex> lock(spec_mutex);
  auto [position, inserted] = spec_ids.emplace(std::move(key), static_cast<SpecId>(specs.size()));
  if (inserted) specs.push_back(std::make_unique<Spec>(Spec{dtype, shape.vec()}));
  return position->second;
}

const Spec& spec_of(SpecId id) {
  std::lock_guard<std::mutex> lock(spec_mutex);
  return *specs.at(id);
}

Cell& cell_of(const at::Tensor& tensor) {
  TORCH_CHECK(tensor.device().type() == kDevice, "expected a tensor on device tpu, got one on ", tensor.device());
  auto* cell = static_cast<Cell*>(tensor.storage().data_ptr().get_context());
  if (!cell) {
    std::lock_guard<std::mutex> lock(address_mutex);
    const auto found = cell_at.find(reinterpret_cast<uintptr_t>(tensor.storage().data_ptr().get()));
    if (found != cell_at.end()) cell = found->second;
  }
  TORCH_CHECK(cell, "this tpu tensor has no storage (its storage was resized away or it is fake)");
  return *cell;
}

void set_array(Cell& cell, PyObject* array, SpecId spec) {
  forget(cell);
  PyObject* old = cell.array;
  cell.array = array;
  cell.spec = spec;
  Py_XDECREF(old);
}

at::Tensor new_tensor(at::ScalarType dtype, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                      c10::DeviceIndex device) {
  const size_t itemsize = c10::elementSize(dtype);
  const size_t nbytes = at::detail::computeStorageNbytes(sizes, strides, itemsize);
  auto storage = c10::make_intrusive<c10::StorageImpl>(c10::StorageImpl::use_byte_size_t(), nbytes,
                                                       make_data(nbytes, device), &the_allocator, true);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(c10::DispatchKey::PrivateUse1), c10::scalarTypeToTypeMeta(dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
  return tensor;
}

void resize_storage(c10::StorageImpl* storage, size_t nbytes) {
  auto* cell = static_cast<Cell*>(storage->data_ptr().get_context());
  if (cell && nbytes > cell->nbytes) check_room(cell->device, nbytes - cell->nbytes);
  if (!cell) {
    storage->set_data_ptr_noswap(make_data(nbytes, storage->device().index()));
    storage->set_nbytes(nbytes);
    return;
  }
  pybind11::gil_scoped_acquire gil;
  if (PyObject* kept = array_of(*cell)) {
    // The bytes that fit survive, as on every other device.
    auto array = python_call("resized_bytes", pybind11::reinterpret_borrow<pybind11::object>(kept), nbytes,
                             static_cast<int>(cell->device));
    const int64_t length = static_cast<int64_t>(nbytes);
    set_array(*cell, array.release().ptr(), intern_spec(at::kByte, {length}));
  }
  account(cell->device, static_cast<int64_t>(nbytes) - static_cast<int64_t>(cell->nbytes));
  cell->nbytes = nbytes;
  storage->set_nbytes(nbytes);
}

}  // namespace systolic
