// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver for the benchmark, opened at run time: ONEHOP_CUDA_LIBRARY, else libcuda.so.1;
// its devices, and memory of every kind. Declarations come from the library's own list of the
// driver's binary interface.
//
// Threading: any thread; a Device keeps its context, and a Current makes it the calling thread's. A
// block belongs to one thread at a time.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "payload.h"
#include "platform/cuda/abi.h"

namespace bench {

namespace cuda = oh::cuda;

// No driver, or a call of it that failed; the text names it.
struct GpuError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

namespace abi {
using namespace oh::cuda;  // NOLINT: the list below names its types unqualified
struct Calls {
#define BENCH_CUDA_MEMBER(name, symbol, parameters) Code(*name) parameters = nullptr;
  OH_CUDA_FUNCTIONS(BENCH_CUDA_MEMBER)
  OH_CUDA_TEST_FUNCTIONS(BENCH_CUDA_MEMBER)
#undef BENCH_CUDA_MEMBER
};
}  // namespace abi

struct GpuDriver : abi::Calls {
  // Opened and initialised once per process. GpuError: there is none here, and why.
  static const GpuDriver& open();
  // Where it was found, and the version that it speaks: 13000 is CUDA 13.0.
  static std::string library();
  int version() const;
  // Throws what a code means, unless it is success.
  void check(cuda::Code code, const char* call) const;
};

// gpu.check(gpu.call(arguments), "call")
#define BENCH_CUDA(gpu, call, ...) (gpu).check((gpu).call(__VA_ARGS__), #call)

// A device and its primary context.
class Device {
 public:
  // "cuda" or "cuda:N".
  explicit Device(const std::string& name);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  const GpuDriver& driver() const { return driver_; }
  int ordinal() const { return ordinal_; }
  cuda::Context context() const { return context_; }
  // For whatever the benchmark itself does.
  cuda::Stream stream() const { return stream_; }
  void synchronize() const { BENCH_CUDA(driver_, stream_synchronize, stream_); }
  // Copies between any two places of memory and waits.
  void copy(void* to, const void* from, size_t size) const;
  size_t free_memory() const;

 private:
  const GpuDriver& driver_;
  int ordinal_;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
};

// While it lives, the device's context is the calling thread's.
class Current {
 public:
  explicit Current(const Device& device) : driver_(device.driver()) {
    BENCH_CUDA(driver_, context_push, device.context());
  }
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  ~Current() {
    cuda::Context unused;
    driver_.context_pop(&unused);
  }

 private:
  const GpuDriver& driver_;
};

inline cuda::DevicePtr address_of(const void* memory) {
  return reinterpret_cast<cuda::DevicePtr>(memory);
}

// One allocation. Throws GpuError.
class GpuBlock {
 public:
  GpuBlock(const Device& device, Memory kind, size_t size);
  // Of another library, which `memory` gives it back to.
  GpuBlock(const Device& device, std::shared_ptr<void> memory, size_t size);
  GpuBlock(const GpuBlock&) = delete;
  GpuBlock& operator=(const GpuBlock&) = delete;
  ~GpuBlock();

  uint8_t* data() const { return reinterpret_cast<uint8_t*>(address_); }
  size_t size() const { return size_; }

 private:
  void allocate_vmm();
  void allocate_pool();
  void free_vmm();

  const Device& device_;
  const GpuDriver& driver_;
  Memory kind_;
  size_t size_;
  cuda::DevicePtr address_ = 0;
  std::shared_ptr<void> foreign_;
  // VMM
  size_t reserved_ = 0;
  size_t mapped_ = 0;
  std::vector<cuda::AllocationHandle> chunks_;
  // Pool
  cuda::MemoryPool pool_ = nullptr;
};

// A block, with a copy of it on the host. `room`: bytes of the allocation, at least.
class GpuBuffer : public Buffer {
 public:
  GpuBuffer(const Device& device, const Spec& spec, size_t size, size_t room = 1);
  // `block`: as large as the buffer, at least.
  GpuBuffer(const Device& device, std::unique_ptr<GpuBlock> block, size_t size, size_t offset = 0);
  void publish() override { device_.copy(place(), data(), size()); }
  void fetch() override { device_.copy(data(), place(), size()); }

 private:
  const Device& device_;
  const std::unique_ptr<GpuBlock> block_;
};

// Work on a GPU that writes the first bytes of each message, and an event behind it: what a message
// of a framework's stream waits for.
class Producer {
 public:
  // The messages are at `out`.
  Producer(const Device& device, const Buffer& out);
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  ~Producer();

  // Begins to write message `i`. What is timed at the side that measures is a message whose bytes
  // are there, behind an event that says so: `wait` until then.
  void produce(uint64_t i, bool wait);
  cuda::Event event() const { return event_; }

 private:
  const Device& device_;
  uint8_t* place_;
  size_t bytes_;
  cuda::Event event_ = nullptr;
};

}  // namespace bench
