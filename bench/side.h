// SPDX-License-Identifier: Apache-2.0
//
// One side of a benchmark: an endpoint, its link to the other side, and what both agree on. Side 0
// measures, side 1 answers; both call the same function with the same Spec.
//
// Threading: a side belongs to one thread at a time.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "clock.h"
#include "gpu_memory.h"
#include "onehop/onehop.hpp"

namespace bench {

enum class Mode {
  kSendRecv,     // send and recv
  kPut,          // put, until it is visible at the target
  kGet,          // get
  kPutSignal,    // put and signal one way, and back: what a message by put costs
  kEvent,        // isend behind an event of the stream that wrote the message, and recv
  kPutPrepared,  // batch: prepared once, put by posts
  kGetPrepared,
  kStream,        // in the order of a stream: send and recv
  kGraph,         // the same, as a graph of 50 round trips that is replayed
  kStreamPut,     // put and signal in the order of a stream
  kGraphPut,      // the same, as a graph
  kKernel,        // send and recv within a kernel
  kKernelSingle,  // the same, the sender polling in the receiver's memory
  kKernelPut,     // put and signal within a kernel of 8 blocks
  kBulk,          // batch, for comparison: gathered, sent as one message, and scattered
};

struct Spec {
  Mode mode = Mode::kSendRecv;
  size_t size = 8;
  size_t iterations = 1000;  // timed
  size_t warmup = 100;       // not timed, checked all the same
  size_t window = 1;         // operations in flight; 1: each ends before the next begins
  size_t blocks = 1;         // of a batch
  size_t threads = 32;       // of a kernel's group: a warp, or a block of more
  bool strided = false;      // batch: base, stride and count instead of lists
  bool shared = false;       // buffers of oh_shared_alloc, else private memory
  bool both = false;         // bandwidth: both directions at once; figures are each way's
  bool corrupt = false;      // flips a byte of the last message: a wrong row must show as wrong
  Memory memory = Memory::kHost;  // of this side
  size_t offset = 0;              // into the allocation; not of host memory
  // Every message is stamped and looked at. Else, as where a GPU holds the bytes and looking would
  // cost more than what is measured, the passes before and after the timed one are checked whole.
  bool stamped = true;
};

struct Outcome {
  std::vector<double> samples_us;  // per operation; of side 0 only
  // Of a prepared batch: posts of as many blocks of one byte, which is what a post costs by itself.
  std::vector<double> post_us;
  double seconds = 0;  // of all timed operations
  double bytes = 0;    // moved in that time
  uint64_t wrong = 0;  // bytes that this side found wrong
  oh_path path = OH_PATH_NONE;
};

// Tags of the benchmark: its traffic, and what the sides tell each other.
inline constexpr uint64_t kDataTag = 0;
inline constexpr uint64_t kControlTag = 1;

class Side;

// Memory of the kind that the row is about; poisoned. Transfers use `place`; the payload is made
// and looked at in `data`, which is the same for host memory and a copy for that of a GPU.
class Buffer {
 public:
  Buffer(size_t size, bool shared);
  Buffer(const Side& side, const Spec& spec, size_t size);
  uint8_t* data() { return data_; }
  uint8_t* place() { return block_ ? block_->data() + offset_ : data_; }
  size_t size() const { return size_; }
  // Copies data to its place, or back.
  void publish();
  void fetch();

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::unique_ptr<uint8_t, Free> own_;
  std::unique_ptr<onehop::SharedMemory> shared_;
  uint8_t* data_;
  size_t size_;
  const Device* device_ = nullptr;
  std::unique_ptr<GpuBlock> block_;
  size_t offset_ = 0;
};

class Side {
 public:
  // `device`: as oh_endpoint_options has it; empty: host memory. `max_inline`: what its endpoints
  // ask for; without one, the configuration's.
  explicit Side(int number, const std::string& device = "",
                std::optional<size_t> max_inline = std::nullopt);

  int number() const { return number_; }
  bool first() const { return number_ == 0; }
  onehop::Endpoint& endpoint() { return *endpoint_; }
  onehop::Peer& peer() { return *peer_; }
  const onehop::Bytes& other_address() const { return other_address_; }
  // GpuError: the side has none.
  const Device& device() const;
  bool has_device() const { return device_.has_value(); }
  // Another endpoint like the side's own.
  onehop::Endpoint make_endpoint() const;
  // What it took to create the endpoint: the first of a process opens libcrypto, too.
  double created_us() const { return created_us_; }
  // What of a message lies within a control message, at most: as the link grants it.
  size_t max_inline() const { return peer_->info().max_inline; }

  onehop::Bytes address() const { return endpoint_->address(); }
  void connect(const onehop::Bytes& address);
  void accept();
  // Ends the link; a later call does nothing.
  void close();

  // Both sides have come here.
  void sync();
  // Gives the other side bytes and takes its own, by the link itself.
  onehop::Bytes swap(const onehop::Bytes& bytes);
  // The region of the other side, which calls it too.
  onehop::RemoteRegion swap_region(const onehop::Region& region);

 private:
  int number_;
  double created_us_ = 0;
  std::string name_;
  std::optional<size_t> asked_inline_;
  std::optional<Device> device_;
  std::unique_ptr<onehop::Endpoint> endpoint_;
  std::unique_ptr<onehop::Peer> peer_;
  onehop::Bytes other_address_;
};

// The seed of the bytes that side `number` sends in `phase` of a row.
uint64_t seed_of(const Spec& spec, int number, uint64_t phase);

// Flips a byte, if the row is to be spoilt and this is the last message.
inline void maybe_corrupt(const Spec& spec, bool last, uint8_t* data) {
  if (spec.corrupt && last && spec.size > 0) data[spec.size / 2] ^= 1;
}

Outcome latency(Side& side, const Spec& spec);
Outcome bandwidth(Side& side, const Spec& spec);
Outcome bandwidth_both(Side& side, const Spec& spec);
Outcome batch(Side& side, const Spec& spec);
// Of what runs in the order of a stream, or within a kernel.
Outcome ordered_latency(Side& side, const Spec& spec);
Outcome ordered_bandwidth(Side& side, const Spec& spec);
inline bool is_ordered(Mode mode) { return mode >= Mode::kStream; }

}  // namespace bench
