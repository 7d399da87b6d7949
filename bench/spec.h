// SPDX-License-Identifier: Apache-2.0
//
// What a row of the benchmark measures, and what one side found. Both sides get the same Spec.
//
// Threading: plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

// Which loop measures it.
enum class Op { kLatency, kBandwidth, kBatch, kPatterns };

enum class Mode {
  kSendRecv,
  kPut,  // put, until it is visible at the target
  kGet,
  kPutSignal,    // put and signal one way, and back: what a message by put costs
  kEvent,        // isend behind an event of the stream that wrote the message, and recv
  kPutPrepared,  // batch: prepared once, put by posts
  kGetPrepared,
  kPutStream,  // batch: put in the order of a stream, and a signal
  kGetStream,
  kStream,        // in the order of a stream: send and recv
  kStreamPut,     // put and signal in the order of a stream
  kKernel,        // send and recv within a kernel
  kKernelSingle,  // the same, the sender polling in the receiver's memory
  kKernelPut,     // put and signal within a kernel of 8 blocks
  kBulk,          // batch, for comparison: gathered, sent as one message, and scattered
  // Patterns: exchanges among ranks. With kSendRecv each sends to the next of a ring.
  kSendMany,   // rank 0 to all others
  kRecvMany,   // all others to rank 0
  kAllToAllV,  // all to all, themselves too, parts of 1/4 to 4/4 of the size
  kDispatch,   // the same, and only the device knows of how much
};
inline bool is_ordered(Mode mode) { return mode >= Mode::kStream && mode <= Mode::kKernelPut; }
inline bool is_one_sided(Mode mode) { return mode == Mode::kPut || mode == Mode::kGet; }

enum class Memory {
  kHost,         // the process's own, or of oh_shared_alloc
  kPinned,       // cudaMallocHost
  kCuda,         // cudaMalloc
  kCudaVmm,      // several VMM chunks in one range of addresses, as PyTorch's expandable segments
  kCudaPool,     // cudaMallocAsync from a pool that can be exported
  kCudaAsync,    // cudaMallocAsync from the device's default pool
  kCudaManaged,  // cudaMallocManaged
};

struct Spec {
  Op op = Op::kLatency;
  Mode mode = Mode::kSendRecv;
  size_t size = 8;           // of a message, a block, or the largest part of a pattern
  size_t iterations = 1000;  // timed
  size_t warmup = 100;       // not timed, checked all the same
  size_t window = 1;         // operations in flight; 1: each ends before the next begins
  size_t blocks = 1;         // of a batch
  // Of a kernel's group: a warp, a block of more, or a cluster of blocks of kMostThreads.
  size_t threads = 32;
  bool strided = false;  // batch: base, stride and count instead of lists
  bool shared = false;   // buffers of oh_shared_alloc, else private memory
  bool graph = false;    // on a stream: up to 50 operations as a graph, which is replayed
  bool both = false;     // bandwidth: both directions at once; figures are each way's
  // Flips a byte of the last message, and of one of those that are enqueued in a row and all
  // checked: a wrong row must show as wrong.
  bool corrupt = false;
  Memory memory = Memory::kHost;  // of this side
  size_t offset = 0;              // into the allocation; not of host memory
  // Each message is stamped, and its stamps are checked. false: only the passes before the timed
  // one and its last messages are checked, as the bytes of a GPU are: a look at them would take
  // longer than the message.
  bool stamped = true;
  // Each message has new bytes and is compared whole; its times mean nothing.
  bool thorough = false;
};

struct Outcome {
  std::vector<double> samples_us;  // per operation; of side 0 only
  // Of a prepared batch: posts of as many blocks of one byte, which is what a post costs by itself.
  std::vector<double> post_us;
  double seconds = 0;    // of all timed operations
  double bytes = 0;      // moved in that time
  uint64_t wrong = 0;    // bytes that this side found wrong
  uint64_t checked = 0;  // messages that this side compared whole
  std::string path = "none";
  void add(double us, double moved, double share = 1) {
    samples_us.push_back(us * share);
    seconds += us / 1e6;
    bytes += moved;
  }
};

}  // namespace bench
