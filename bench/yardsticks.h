// SPDX-License-Identifier: Apache-2.0
//
// What onehop is compared with. Floors: what the machine can do without a library. Two sides that
// have met call floor() with the same row:
//
//   flag            two processes spin on a cache line each; messages of 8 bytes
//   process_vm      process_vm_readv of the other process's memory
//   memcpy          a copy into the other side's memory, within one process: by the CPU, or by
//                   cudaMemcpyAsync from one device to the other until the stream is done
//   put_flag        the same between two processes, into memory that is mapped by its legacy
//                   handle, and a word in shared memory; put_flag_event: behind an event
//   stream, graph, kernel    bare lines of 16 bytes in the other process's memory, 12 of payload
//                   and a number, by kernels
//
// NCCL, opened at run time: its send and receive between two sides or among ranks.
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

// Two sides that share one page, to meet and to tell each other of a message. Side 1 finds the page
// by the place that its parent passes on. The parent of both sides ends them, should one die.
class Meeting : public Link {
 public:
  explicit Meeting(int number);
  Meeting(const Meeting&) = delete;
  Meeting& operator=(const Meeting&) = delete;
  ~Meeting() override;

  // Where side 1 finds the page of side 0.
  std::string place() const;
  void join(const std::string& place);

  int number() const override { return number_; }
  void sync() override;
  // At most kMostBytes.
  Bytes swap(const Bytes& bytes) override;

  static constexpr size_t kMostBytes = 1024;
  // Words of one side, on cache lines of their own (two, for the adjacent-line prefetcher). The
  // number, which only grows, is stored with release behind the value, and loaded with acquire
  // before it.
  struct alignas(128) Line {
    std::atomic<uint64_t> number{0};
    std::atomic<uint64_t> value{0};
  };
  // Tells the other side a value, and awaits its next one. Inline, for that is what a floor
  // measures.
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

// A side of what onehop is compared with; floor rows and NCCL use it.
struct Yardstick {
  // `device`: empty for memory of the host.
  Yardstick(int number, const std::string& name) : meeting(number) {
    if (!name.empty()) device.emplace(name);
  }
  // Rows of the host's memory are of single operations.
  Outcome floor(const Spec& spec, const std::string& name);

  Meeting meeting;
  std::optional<Device> device;
};

struct NcclLibrary;

// A rank's communicator; what it moves goes on the device's stream.
class Nccl {
 public:
  // All ranks are here at once; the link gives them the bytes of rank 0. `registered`: what it
  // moves is of ncclMemAlloc, and registered with the communicator.
  Nccl(Link& link, uint32_t ranks, const Device& device, const std::vector<std::string>& libraries,
       bool registered);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // The host awaits each operation by the stream's end, as onehop's blocking calls are awaited, or
  // all are in the order of the stream.
  Outcome run(const Spec& spec);

  void send(const void* data, size_t size, uint32_t to);
  void recv(void* data, size_t size, uint32_t from);
  void begin_group();
  void end_group();
  // Memory of messages. The communicator outlives it.
  std::unique_ptr<GpuBlock> block(const Spec& spec, size_t size);
  const Device& device() const { return device_; }
  std::string version() const;
  // Milliseconds of ncclCommInitRank and of the first send; bytes of the GPU that both took.
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
