// SPDX-License-Identifier: Apache-2.0
#include "gpu.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace bench {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
// The chunk size of PyTorch's expandable segments.
constexpr size_t kChunk = size_t{20} << 20;
constexpr unsigned kAttachGlobal = 1;

GpuDriver open_driver() {
  std::string name = GpuDriver::library();
  if (name == "off") throw GpuError("ONEHOP_CUDA_LIBRARY is off");
  // Never closed: driver libraries do not support it.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw GpuError(std::string("no CUDA driver: ") + dlerror());
  GpuDriver driver;
#define BENCH_CUDA_LOAD(member, symbol, parameters)                                   \
  driver.member = reinterpret_cast<decltype(driver.member)>(dlsym(library, #symbol)); \
  if (!driver.member) throw GpuError(name + " has no " #symbol ": the driver is too old");
  OH_CUDA_FUNCTIONS(BENCH_CUDA_LOAD)
  OH_CUDA_TEST_FUNCTIONS(BENCH_CUDA_LOAD)
#undef BENCH_CUDA_LOAD
  BENCH_CUDA(driver, init, 0);
  return driver;
}

int ordinal_of(const std::string& name, int count) {
  int ordinal = 0;
  size_t colon = name.find(':');
  if (colon != std::string::npos) {
    const char* end = name.data() + name.size();
    auto found = std::from_chars(name.data() + colon + 1, end, ordinal);
    if (found.ec != std::errc() || found.ptr != end) ordinal = -1;
  }
  if (name.substr(0, colon) != "cuda" || ordinal < 0 || ordinal >= count) {
    throw GpuError("'" + name +
                   "' is no device: there are cuda:0 to cuda:" + std::to_string(count - 1));
  }
  return ordinal;
}

}  // namespace

const GpuDriver& GpuDriver::open() {
  static const GpuDriver driver = open_driver();
  return driver;
}

std::string GpuDriver::library() {
  const char* named = std::getenv("ONEHOP_CUDA_LIBRARY");
  return named && *named ? named : kLibrary;
}

int GpuDriver::version() const {
  int version = 0;
  BENCH_CUDA(*this, driver_version, &version);
  return version;
}

void GpuDriver::check(cuda::Code code, const char* call) const {
  if (code == cuda::kSuccess) return;
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(code, &name) != cuda::kSuccess || !name) name = "unknown code";
  if (error_string(code, &text) != cuda::kSuccess || !text) text = "no text";
  throw GpuError(std::string("the CUDA driver's ") + call + " failed: " + name + " (" +
                 std::to_string(code) + "), " + text);
}

Device::Device(const std::string& name) : driver_(GpuDriver::open()) {
  int count = 0;
  BENCH_CUDA(driver_, device_count, &count);
  ordinal_ = ordinal_of(name, count);
  BENCH_CUDA(driver_, primary_retain, &context_, ordinal_);
  Current current(*this);
  BENCH_CUDA(driver_, stream_create, &stream_, cuda::kStreamNonBlocking);
}

Device::~Device() {
  {
    Current current(*this);
    driver_.stream_destroy(stream_);
  }
  driver_.primary_release(ordinal_);
}

void Device::copy(void* to, const void* from, size_t size) const {
  if (size == 0) return;
  Current current(*this);
  BENCH_CUDA(driver_, memcpy_async, address_of(to), address_of(from), size, stream_);
  synchronize();
}

size_t Device::free_memory() const {
  Current current(*this);
  size_t available = 0;
  size_t total = 0;
  BENCH_CUDA(driver_, memory_info, &available, &total);
  return available;
}

GpuBlock::GpuBlock(const Device& device, Memory kind, size_t size)
    : device_(device), driver_(device.driver()), kind_(kind), size_(size) {
  Current current(device);
  void* host = nullptr;
  switch (kind) {
    case Memory::kHost:
      throw GpuError("host memory is no memory of the driver");
    case Memory::kPinned:
      BENCH_CUDA(driver_, host_alloc, &host, size, cuda::kHostRegisterPortable);
      address_ = address_of(host);
      break;
    case Memory::kCuda:
      BENCH_CUDA(driver_, memory_alloc, &address_, size);
      break;
    case Memory::kCudaVmm:
      allocate_vmm();
      break;
    case Memory::kCudaPool:
      allocate_pool();
      break;
    case Memory::kCudaAsync:
      BENCH_CUDA(driver_, alloc_async, &address_, size, device.stream());
      device.synchronize();
      break;
    case Memory::kCudaManaged:
      BENCH_CUDA(driver_, memory_alloc_managed, &address_, size, kAttachGlobal);
      break;
  }
}

GpuBlock::GpuBlock(const Device& device, std::shared_ptr<void> memory, size_t size)
    : device_(device),
      driver_(device.driver()),
      kind_(Memory::kHost),
      size_(size),
      address_(address_of(memory.get())),
      foreign_(std::move(memory)) {}

GpuBlock::~GpuBlock() {
  Current current(device_);
  foreign_.reset();
  switch (kind_) {
    case Memory::kHost:
      break;
    case Memory::kPinned:
      driver_.host_free(data());
      break;
    case Memory::kCuda:
    case Memory::kCudaManaged:
      driver_.memory_free(address_);
      break;
    case Memory::kCudaVmm:
      free_vmm();
      break;
    case Memory::kCudaPool:
    case Memory::kCudaAsync:
      driver_.free_async(address_, device_.stream());
      driver_.stream_synchronize(device_.stream());
      if (pool_) driver_.pool_destroy(pool_);
      break;
  }
}

void GpuBlock::allocate_vmm() {
  cuda::AllocationProp prop{};
  prop.type = cuda::kAllocationPinned;
  prop.requested_handle_types = cuda::kHandleTypePosixFd;
  prop.location = {cuda::kLocationDevice, device_.ordinal()};
  try {
    size_t bytes = (size_ + kChunk - 1) / kChunk * kChunk;
    BENCH_CUDA(driver_, vmm_reserve, &address_, bytes, 0, 0, 0);
    reserved_ = bytes;
    for (; mapped_ < bytes; mapped_ += kChunk) {
      cuda::AllocationHandle chunk = 0;
      BENCH_CUDA(driver_, vmm_create, &chunk, kChunk, &prop, 0);
      chunks_.push_back(chunk);
      BENCH_CUDA(driver_, vmm_map, address_ + mapped_, kChunk, 0, chunk, 0);
    }
    cuda::AccessDesc access{prop.location, cuda::kAccessReadWrite};
    BENCH_CUDA(driver_, vmm_set_access, address_, bytes, &access, 1);
  } catch (const GpuError&) {
    free_vmm();
    throw;
  }
}

void GpuBlock::free_vmm() {
  for (size_t at = 0; at < mapped_; at += kChunk) driver_.vmm_unmap(address_ + at, kChunk);
  for (cuda::AllocationHandle chunk : chunks_) driver_.vmm_release(chunk);
  if (reserved_ > 0) driver_.vmm_unreserve(address_, reserved_);
}

void GpuBlock::allocate_pool() {
  cuda::PoolProps props{};
  props.type = cuda::kAllocationPinned;
  props.handle_types = cuda::kHandleTypePosixFd;
  props.location = {cuda::kLocationDevice, device_.ordinal()};
  BENCH_CUDA(driver_, pool_create, &pool_, &props);
  try {
    BENCH_CUDA(driver_, alloc_from_pool_async, &address_, size_, pool_, device_.stream());
    device_.synchronize();
  } catch (const GpuError&) {
    driver_.pool_destroy(pool_);
    throw;
  }
}

GpuBuffer::GpuBuffer(const Device& device, const Spec& spec, size_t size, size_t room)
    : GpuBuffer(device,
                std::make_unique<GpuBlock>(device, spec.memory,
                                           std::max({size, room, size_t{1}}) + spec.offset),
                size, spec.offset) {}

GpuBuffer::GpuBuffer(const Device& device, std::unique_ptr<GpuBlock> block, size_t size,
                     size_t offset)
    : Buffer(size), device_(device), block_(std::move(block)) {
  set_place(block_->data() + offset);
  publish();
}

Producer::Producer(const Device& device, const Buffer& out)
    : device_(device), place_(out.place()), bytes_(produced(out.size())) {
  Current current(device_);
  BENCH_CUDA(device_.driver(), event_create, &event_, cuda::kEventDisableTiming);
}

Producer::~Producer() {
  Current current(device_);
  device_.driver().event_destroy(event_);
}

void Producer::produce(uint64_t i, bool wait) {
  Current current(device_);
  if (bytes_ > 0) {
    BENCH_CUDA(device_.driver(), memset8_async, address_of(place_), produced_mark(i), bytes_,
               device_.stream());
  }
  BENCH_CUDA(device_.driver(), event_record, event_, device_.stream());
  if (wait) device_.synchronize();
}

}  // namespace bench
