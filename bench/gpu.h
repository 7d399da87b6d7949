// SPDX-License-Identifier: Apache-2.0
//
// The CUDA driver for the benchmark, opened at run time (ONEHOP_CUDA_LIBRARY, or libcuda.so.1); its
// devices, and memory of every kind. Declarations come from the library's own list of the driver's
// ABI.
//
// Threading: any thread; a Device retains its context, and a Current makes it current on the
// calling thread. A block belongs to one thread at a time.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "payload.h"
#include "platform/cuda/abi.h"

namespace bench {

namespace cuda = oh::cuda;

// No driver, or a failed driver call, which the text names.
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
  // Opened and initialized once per process. GpuError: not available; the text gives the reason.
  static const GpuDriver& open();
  // Path of the library, and the CUDA version that it supports: 13000 is CUDA 13.0.
  static std::string library();
  int version() const;
  // Throws the error of a code, unless it is success.
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
  // For the benchmark's own work.
  cuda::Stream stream() const { return stream_; }
  void synchronize() const { BENCH_CUDA(driver_, stream_synchronize, stream_); }
  // Copies between any kinds of memory and waits.
  void copy(void* to, const void* from, size_t size) const;
  size_t free_memory() const;

 private:
  const GpuDriver& driver_;
  int ordinal_;
  cuda::Context context_ = nullptr;
  cuda::Stream stream_ = nullptr;
};

// Makes the device's context current on the calling thread during its lifetime.
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
  // Memory of another library; the deleter of `memory` returns it.
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

// A block with a copy on the host. `room`: minimum size of the allocation in bytes.
class GpuBuffer : public Buffer {
 public:
  GpuBuffer(const Device& device, const Spec& spec, size_t size, size_t room = 1);
  // `block`: at least as large as `offset` + `size`.
  GpuBuffer(const Device& device, std::unique_ptr<GpuBlock> block, size_t size, size_t offset = 0);
  void publish() override { device_.copy(place(), data(), size()); }
  void fetch() override { device_.copy(data(), place(), size()); }

 private:
  const Device& device_;
  const std::unique_ptr<GpuBlock> block_;
};

// GPU work that writes the first bytes of each message and then records an event: the dependency of
// a message that a framework's stream produces.
class Producer {
 public:
  // `out`: the memory of the messages.
  Producer(const Device& device, const Buffer& out);
  Producer(const Producer&) = delete;
  Producer& operator=(const Producer&) = delete;
  ~Producer();

  // Starts to write message `i`. The side that measures passes `wait`, so that the bytes and the
  // event are complete before the timed message starts.
  void produce(uint64_t i, bool wait);
  cuda::Event event() const { return event_; }

 private:
  const Device& device_;
  uint8_t* place_;
  size_t bytes_;
  cuda::Event event_ = nullptr;
};

}  // namespace bench
