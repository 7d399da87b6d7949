// SPDX-License-Identifier: Apache-2.0
//
// What a row of the benchmark measures, and the result of one side. Both sides get the same Spec.
//
// Threading: plain data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace bench {

// The loop that measures the row.
enum class Op { kLatency, kBandwidth, kBatch, kPatterns };

enum class Mode {
  kSendRecv,
  kPut,  // put, until it is visible at the target
  kGet,
  kPutSignal,    // put and signal in each direction: the cost of a message by put
  kEvent,        // isend after an event of the stream that wrote the message, and recv
  kPutPrepared,  // batch: prepared once, then posted
  kGetPrepared,
  kPutStream,  // batch: stream-ordered put and signal
  kGetStream,
  kStream,        // stream-ordered send and recv
  kStreamPut,     // stream-ordered put and signal
  kKernel,        // send and recv within a kernel
  kKernelSingle,  // as kKernel, with the sender polling the receiver's memory
  kKernelPut,     // put and signal within a kernel of 8 blocks
  kBulk,          // batch, for comparison: gathered, sent as one message, and scattered
  // Patterns: exchanges among ranks. With kSendRecv each rank sends to the next in a ring.
  kSendMany,   // rank 0 to all others
  kRecvMany,   // all others to rank 0
  kAllToAllV,  // all to all, including itself, parts of 1/4 to 4/4 of the size
  kDispatch,   // as kAllToAllV, with sizes known only on the device
};
inline bool is_ordered(Mode mode) { return mode >= Mode::kStream && mode <= Mode::kKernelPut; }
inline bool is_one_sided(Mode mode) { return mode == Mode::kPut || mode == Mode::kGet; }

enum class Memory {
  kHost,         // private, or from oh_shared_alloc
  kPinned,       // cudaMallocHost
  kCuda,         // cudaMalloc
  kCudaVmm,      // several VMM chunks in one address range, like PyTorch's expandable segments
  kCudaPool,     // cudaMallocAsync from an exportable pool
  kCudaAsync,    // cudaMallocAsync from the device's default pool
  kCudaManaged,  // cudaMallocManaged
};

struct Spec {
  Op op = Op::kLatency;
  Mode mode = Mode::kSendRecv;
  size_t size = 8;           // of a message, a block, or the largest part of a pattern
  size_t iterations = 1000;  // timed
  size_t warmup = 100;       // not timed, but checked
  size_t window = 1;         // operations in flight; 1: each ends before the next starts
  size_t blocks = 1;         // of a batch
  // Threads of a kernel's group: a warp, a larger block, or a cluster of blocks of kMostThreads.
  size_t threads = 32;
  bool strided = false;  // batch: base, stride and count instead of lists
  bool shared = false;   // buffers from oh_shared_alloc instead of private memory
  bool graph = false;    // stream rows: replays a graph of up to 50 operations
  bool both = false;     // bandwidth: both directions at once; results are per direction
  // Flips a byte of the last message, and of one of the checked operations that are enqueued back
  // to back, to prove that a wrong row is reported as wrong.
  bool corrupt = false;
  Memory memory = Memory::kHost;  // of this side
  size_t offset = 0;              // into the allocation; not for host memory
  // Every message is stamped and its stamps are checked. false: only the passes before the timed
  // one and its last messages are checked. Used for GPU memory, where a check would take longer
  // than the message.
  bool stamped = true;
  // Every message has new bytes and is compared completely; its times are meaningless.
  bool thorough = false;
};

struct Outcome {
  std::vector<double> samples_us;  // per operation; side 0 only
  // Prepared batches: times of posts of as many blocks of one byte, the cost of a post alone.
  std::vector<double> post_us;
  double seconds = 0;    // of all timed operations
  double bytes = 0;      // moved in that time
  uint64_t wrong = 0;    // wrong bytes found by this side
  uint64_t checked = 0;  // messages that this side compared completely
  std::string path = "none";
  void add(double us, double moved, double share = 1) {
    samples_us.push_back(us * share);
    seconds += us / 1e6;
    bytes += moved;
  }
};

}  // namespace bench
