#include "cell.h"

#include "python_side.h"

#include <mutex>
#include <unordered_map>

namespace systolic {
namespace {

std::mutex spec_mutex;
// Deque-like stable storage: references handed out by spec_of stay valid.
std::vector<std::unique_ptr<Spec>> specs;
std::unordered_map<std::string, SpecId> spec_ids;

struct DeviceBytes {
  std::atomic<int64_t> current{0}, peak{0}, allocated{0}, freed{0}, count{0}, count_allocated{0};
};
constexpr int kMaxDevices = 64;
DeviceBytes usage[kMaxDevices];

void account(c10::DeviceIndex device, int64_t delta) {
  auto& u = usage[device];
  const int64_t now = u.current += delta;
  if (delta > 0) {
    u.allocated += delta;
    u.count += 1;
    u.count_allocated += 1;
    int64_t peak = u.peak;
    while (now > peak && !u.peak.compare_exchange_weak(peak, now)) {
    }
  } else {
    u.freed -= delta;
    u.count -= 1;
  }
}

// Cells by address, for tensors made from a bare pointer, as PyTorch's serialization makes them.
std::mutex address_mutex;
std::unordered_map<uintptr_t, Cell*> cell_at;

void delete_cell(void* context) {
  auto* cell = static_cast<Cell*>(context);
  {
    std::lock_guard<std::mutex> lock(address_mutex);
    cell_at.erase(cell->address);
  }
  account(cell->device, -static_cast<int64_t>(cell->nbytes));
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
  auto* cell = new Cell;
  cell->device = device;
  cell->nbytes = nbytes;
  account(device, static_cast<int64_t>(nbytes));
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
    stats.allocation[0].current = u.count;
    stats.allocation[0].allocated = u.count_allocated;
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    usage[device].allocated = 0;
    usage[device].freed = 0;
    usage[device].count_allocated = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override { usage[device].peak = usage[device].current.load(); }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    pybind11::gil_scoped_acquire gil;
    return python_call("memory_info", device).cast<std::pair<size_t, size_t>>();
  }
};

Allocator the_allocator;
REGISTER_ALLOCATOR(kDevice, &the_allocator);

}  // namespace

c10::DeviceAllocator& allocator() { return the_allocator; }

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
  if (!cell) {
    storage->set_data_ptr_noswap(make_data(nbytes, storage->device().index()));
    storage->set_nbytes(nbytes);
    return;
  }
  pybind11::gil_scoped_acquire gil;
  if (cell->array) {
    // The bytes that fit survive, as on every other device.
    auto array = python_call("resized_bytes", pybind11::reinterpret_borrow<pybind11::object>(cell->array), nbytes,
                             static_cast<int>(cell->device));
    const int64_t length = static_cast<int64_t>(nbytes);
    set_array(*cell, array.release().ptr(), intern_spec(at::kByte, {length}));
  }
  account(cell->device, static_cast<int64_t>(nbytes) - static_cast<int64_t>(cell->nbytes));
  cell->nbytes = nbytes;
  storage->set_nbytes(nbytes);
}

}  // namespace systolic
