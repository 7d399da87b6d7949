// SPDX-License-Identifier: Apache-2.0
//
// Baselines for onehop. Floors measure what the machine achieves without a library. Two sides that
// have met call floor() with the same row:
//
//   flag            two processes spin on a cache line each; messages of 8 bytes
//   process_vm      process_vm_readv of the other process's memory
//   memcpy          a copy into the other side's memory, within one process: by the CPU, or by
//                   cudaMemcpyAsync between devices and a stream synchronization
//   put_flag        memcpy between two processes, into memory that is mapped by its legacy IPC
//                   handle, and a word in shared memory; put_flag_event: after an event
//   stream, graph, kernel    bare lines of 16 bytes in the other process's memory, 12 of payload
//                   and a number, by kernels
//
// NCCL, opened at run time: send and receive between two sides or among ranks.
//
// Threading: each side or rank belongs to a thread of its own.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "gpu.h"
#include "wire.h"

namespace bench {

// Two sides that share one page to synchronize and to signal messages. Side 1 finds the page
// through the path that its parent passes on. If one side dies, the parent of both ends the other.
class Meeting : public Link {
 public:
  explicit Meeting(int number);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() override;

  // The path by which side 1 opens side 0's page.
  std::string place() const;
  void join(const std::string& place);

  int number() const override { return number_; }
  void sync() override;
  // At most kMostBytes.
  Bytes swap(const Bytes& bytes) override;

  static constexpr size_t kMostBytes = 1024;
  // Words of one side, on separate cache lines (two, because of the adjacent-line prefetcher). The
  // number only grows. It is stored with release after the value, and loaded with acquire before
  // it.
  struct alignas(128) Line {
    std::atomic<uint64_t> number{0};
    std::atomic<uint64_t> value{0};
  };
  // Send a value to the other side, and wait for its next one. Inline, because a floor measures
  // them.
  void tell(uint64_t value = 0) {
    Line& line = page_->lines[number_];
    line.value.store(value, std::memory_order_relaxed);
    line.number.store(++told_, std::memory_order_release);
  }
  uint64_t await() {
    const Line& line = page_->lines[1 - number_];
    await_value(line.number, ++heard_);
    return line.value.load(std::memory_order_relaxed);
  }

 private:
  struct Page {
    Line lines[2];
    Line arrived[2];
    struct {
      size_t size;
      uint8_t data[kMostBytes];
    } given[2];
  };

  static void pause_spin() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
  }
  static void await_value(const std::atomic<uint64_t>& value, uint64_t least) {
    constexpr uint64_t kRest = 1 << 14;
    for (uint64_t round = 1; value.load(std::memory_order_acquire) < least; ++round) {
      pause_spin();
      if (round % kRest == 0) rest();
    }
  }
  // Yields, for machines with fewer cores than sides.
  static void rest();
  void map();

  int number_;
  int fd_ = -1;
  Page* page_ = nullptr;
  uint64_t round_ = 0;
  uint64_t told_ = 0;
  uint64_t heard_ = 0;
};

// One side of a baseline; used by floor rows and NCCL.
struct Yardstick {
  // `name`: the device; empty: host memory.
  Yardstick(int number, const std::string& name) : meeting(number) {
    if (!name.empty()) device.emplace(name);
  }
  // Rows of host memory measure single operations.
  Outcome floor(const Spec& spec, const std::string& name);

  Meeting meeting;
  std::optional<Device> device;
};

struct NcclLibrary;

// A rank's communicator. It transfers on the device's stream.
class Nccl {
 public:
  // All ranks construct it concurrently; the link distributes rank 0's bytes. `registered`:
  // transfers use memory from ncclMemAlloc that is registered with the communicator.
  Nccl(Link& link, uint32_t ranks, const Device& device, const std::vector<std::string>& libraries,
       bool registered);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // Either the host synchronizes the stream after each operation, as for onehop's blocking calls,
  // or all operations are stream-ordered.
  Outcome run(const Spec& spec);

  void send(const void* data, size_t size, uint32_t to);
  void recv(void* data, size_t size, uint32_t from);
  void begin_group();
  void end_group();
  // Allocates memory for messages. The communicator must outlive it.
  std::unique_ptr<GpuBlock> block(const Spec& spec, size_t size);
  const Device& device() const { return device_; }
  std::string version() const;
  // Milliseconds of ncclCommInitRank and of the first send; bytes of GPU memory that both took.
  double init_ms() const { return init_ms_; }
  double first_ms() const { return first_ms_; }
  double device_bytes() const { return device_bytes_; }

 private:
  Link& link_;
  const uint32_t ranks_;
  const Device& device_;
  const bool registered_;
  std::unique_ptr<const NcclLibrary> library_;
  std::unique_ptr<void, std::function<void(void*)>> communicator_;
  double init_ms_ = 0;
  double first_ms_ = 0;
  double device_bytes_ = 0;
};

}  // namespace bench
