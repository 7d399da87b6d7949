// SPDX-License-Identifier: Apache-2.0
//
// The benchmark's kernels: messages and puts with onehop/device.cuh, and the same with plain loads
// and stores for comparison. The checked kernels write and verify every byte.
#include "kernels.h"

#include "onehop/device.cuh"

namespace bench {
// Senders poll their credit in the receiver's memory.
struct SingleAtomics : onehop::detail::DeviceAtomics {};
}  // namespace bench
template <>
inline constexpr bool onehop::detail::kSingle<bench::SingleAtomics> = true;

namespace {

using bench::LineArgs;
using bench::LineCount;
using Payload = bench::KernelPayload;

// ---- Bytes determined by the side, the round and their position

// One word of four bytes.
__device__ uint32_t pattern(uint32_t side, uint32_t round, uint64_t word) {
  uint32_t mixed = static_cast<uint32_t>(word) * 0x9e3779b9u + (2 * round + side + 1) * 0x85ebca6bu;
  mixed ^= mixed >> 15;
  mixed *= 0x2c1b3c6du;
  mixed ^= mixed >> 13;
  return mixed;
}

// Calls words(i) for the group's share of a message's words, and bytes(k) for the bytes after the
// last whole word.
template <typename Group, typename Words, typename Bytes>
__device__ void for_all(Group& group, uint64_t size, Words words, Bytes bytes) {
  const uint64_t whole = size / 4;
#pragma unroll 4
  for (uint64_t i = group.rank(); i < whole; i += group.size()) words(i);
  if (!group.leads()) return;
  for (uint64_t k = 4 * whole; k < size; ++k) bytes(k);
}
__device__ uint8_t pattern_byte(uint32_t side, uint32_t round, uint64_t at) {
  return static_cast<uint8_t>(pattern(side, round, at / 4) >> (8 * (at % 4)));
}

// Writes the bytes to send in a round.
template <typename Group>
__device__ void lay_out(Group& group, const Payload& payload, uint32_t round) {
  uint32_t* out = reinterpret_cast<uint32_t*>(payload.out);
  uint8_t* tail = reinterpret_cast<uint8_t*>(payload.out);
  const bool spoil = payload.corrupt != 0 && payload.side == 0 && round + 1 == payload.rounds;
  group.sync();
  for_all(
      group, payload.bytes,
      [&](uint64_t i) { out[i] = pattern(payload.side, round, i) ^ (spoil && i == 0 ? 1u : 0u); },
      [&](uint64_t k) { tail[k] = pattern_byte(payload.side, round, k) ^ (spoil ? 1u : 0u); });
  group.sync();
}

// Overwrites the receive buffer so that no byte equals the expected one.
template <typename Group>
__device__ void poison(Group& group, const Payload& payload, uint32_t round) {
  uint32_t* in = reinterpret_cast<uint32_t*>(payload.in);
  uint8_t* tail = reinterpret_cast<uint8_t*>(payload.in);
  group.sync();
  for_all(
      group, payload.bytes, [&](uint64_t i) { in[i] = ~pattern(1 - payload.side, round, i); },
      [&](uint64_t k) { tail[k] = ~pattern_byte(1 - payload.side, round, k); });
  group.sync();
}

template <typename Group>
__device__ void look_at(Group& group, const Payload& payload, uint32_t round) {
  const uint32_t* in = reinterpret_cast<const uint32_t*>(payload.in);
  const uint8_t* tail = reinterpret_cast<const uint8_t*>(payload.in);
  unsigned long long wrong = 0;
  for_all(
      group, payload.bytes,
      [&](uint64_t i) {
        wrong += __popc(__vcmpne4(in[i], pattern(1 - payload.side, round, i))) / 8;
      },
      [&](uint64_t k) { wrong += tail[k] != pattern_byte(1 - payload.side, round, k); });
  if (wrong > 0) atomicAdd(reinterpret_cast<unsigned long long*>(payload.findings), wrong);
}

// ---- On lanes

template <typename Group>
__device__ void tell_fault(const Group& group, const Payload& payload, oh_lane_fault fault) {
  if (fault == OH_LANE_OK || !group.leads()) return;
  reinterpret_cast<bench::Findings*>(payload.findings)->fault = fault;
}

template <typename Group, bool kChecked>
__device__ void lane_pingpong(const bench::LaneArgs& args) {
  const Payload& payload = args.payload;
  const void* out = reinterpret_cast<const void*>(payload.out);
  void* in = reinterpret_cast<void*>(payload.in);
  Group group;
  onehop::SendLane<Group> sender(args.lane, group);
  onehop::RecvLane<Group> receiver(args.lane, group);
  for (uint32_t round = 0; round < payload.rounds; ++round) {
    if (kChecked) poison(group, payload, round);
    if (kChecked) lay_out(group, payload, round);
    if (payload.side == 0) sender.send(out, payload.bytes);
    receiver.recv(in, payload.bytes);
    if (payload.side != 0) sender.send(out, payload.bytes);
    if (kChecked) look_at(group, payload, round);
  }
  const oh_lane_fault sent = sender.close();
  tell_fault(group, payload, sent);
  tell_fault(group, payload, receiver.close());
}

template <typename Group, typename Atomics, bool kChecked>
__device__ void send_all(const bench::LaneArgs& args, Group& group) {
  const Payload& payload = args.payload;
  onehop::SendLane<Group, Atomics> sender(args.lane, group);
  for (uint32_t round = 0; round < payload.rounds; ++round) {
    if (kChecked) lay_out(group, payload, round);
    sender.send(reinterpret_cast<const void*>(payload.out), payload.bytes);
  }
  tell_fault(group, payload, sender.close());
}

template <typename Group, typename Atomics, bool kChecked>
__device__ void receive_all(const bench::LaneArgs& args, Group& group) {
  const Payload& payload = args.payload;
  onehop::RecvLane<Group, Atomics> receiver(args.lane, group);
  for (uint32_t round = 0; round < payload.rounds; ++round) {
    if (kChecked) poison(group, payload, round);
    receiver.recv(reinterpret_cast<void*>(payload.in), payload.bytes);
    if (kChecked) look_at(group, payload, round);
  }
  tell_fault(group, payload, receiver.close());
}

// From side 0 to side 1, which confirms at the end; or in both directions at once, by two groups.
template <typename Group, typename Atomics, bool kChecked>
__device__ void lane_flow(const bench::LaneArgs& args, uint32_t group_number) {
  const Payload& payload = args.payload;
  Group group;
  if (payload.both != 0) {
    if (group_number == 0) return send_all<Group, Atomics, kChecked>(args, group);
    return receive_all<Group, Atomics, kChecked>(args, group);
  }
  uint64_t* word = &reinterpret_cast<bench::Findings*>(payload.findings)->word;
  if (payload.side == 0) {
    send_all<Group, Atomics, kChecked>(args, group);
    tell_fault(group, payload, onehop::recv(args.lane, group, word, sizeof(*word)));
  } else {
    receive_all<Group, Atomics, kChecked>(args, group);
    tell_fault(group, payload, onehop::send(args.lane, group, word, sizeof(*word)));
  }
}

// ---- With plain lines

struct Line {
  uint32_t words[3];
  uint32_t number;
};

// Single-copy atomic accesses of 16 bytes.
__device__ __forceinline__ void store_line(uint64_t to, const Line& line) {
  asm volatile(
      "{ .reg .b128 line;\n"
      "  .reg .b64 low, high;\n"
      "  mov.b64 low, {%1, %2};\n"
      "  mov.b64 high, {%3, %4};\n"
      "  mov.b128 line, {low, high};\n"
      "  st.relaxed.sys.global.b128 [%0], line; }" ::"l"(to),
      "r"(line.words[0]), "r"(line.words[1]), "r"(line.words[2]), "r"(line.number)
      : "memory");
}
__device__ __forceinline__ Line load_line(uint64_t from) {
  Line line;
  asm volatile(
      "{ .reg .b128 line;\n"
      "  .reg .b64 low, high;\n"
      "  ld.relaxed.sys.global.b128 line, [%4];\n"
      "  mov.b128 {low, high}, line;\n"
      "  mov.b64 {%0, %1}, low;\n"
      "  mov.b64 {%2, %3}, high; }"
      : "=r"(line.words[0]), "=r"(line.words[1]), "=r"(line.words[2]), "=r"(line.number)
      : "l"(from)
      : "memory");
  return line;
}

__device__ __forceinline__ void send_lines(const LineArgs& args, uint64_t first, uint64_t step,
                                           uint32_t number) {
  const uint32_t* out = reinterpret_cast<const uint32_t*>(args.payload.out);
  for (uint64_t i = first; i < args.lines; i += step) {
    store_line(args.theirs + 16 * i, {{out[3 * i], out[3 * i + 1], out[3 * i + 2]}, number});
  }
}
__device__ __forceinline__ void receive_lines(const LineArgs& args, uint64_t first, uint64_t step,
                                              uint32_t number) {
  uint32_t* in = reinterpret_cast<uint32_t*>(args.payload.in);
  for (uint64_t i = first; i < args.lines; i += step) {
    Line line;
    do {
      line = load_line(args.mine + 16 * i);
    } while (line.number != number);
    for (uint32_t k = 0; k < 3; ++k) in[3 * i + k] = line.words[k];
  }
}

template <bool kChecked>
__device__ void line_pingpong(const LineArgs& args) {
  const Payload& payload = args.payload;
  LineCount* count = reinterpret_cast<LineCount*>(args.count);
  onehop::BlockGroup block;
  const uint32_t before = count->received;
  for (uint32_t round = 0; round < payload.rounds; ++round) {
    const uint32_t number = before + round + 1;
    if (kChecked) poison(block, payload, round);
    if (kChecked) lay_out(block, payload, round);
    if (payload.side == 0) send_lines(args, threadIdx.x, blockDim.x, number);
    receive_lines(args, threadIdx.x, blockDim.x, number);
    if (payload.side != 0) send_lines(args, threadIdx.x, blockDim.x, number);
    __syncthreads();
    if (kChecked) look_at(block, payload, round);
  }
  __syncthreads();
  if (threadIdx.x == 0) count->received = before + payload.rounds;
}

// Waits for the end of the previous kernel, then allows the next one to launch: at most two are
// resident.
__device__ void await_turn() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace

// For two blocks per SM the compiler would spill registers.
#define BENCH_KERNEL extern "C" __global__ void __launch_bounds__(512, 1)

// Ping-pong by a group.
#define BENCH_PINGPONG(name, Group, attribute, checked)                                    \
  BENCH_KERNEL attribute bench_lane_##name(const __grid_constant__ bench::LaneArgs args) { \
    lane_pingpong<Group, checked>(args);                                                   \
  }
#define BENCH_FLOW(name, Group, Atomics, attribute, number, checked)                       \
  BENCH_KERNEL attribute bench_flow_##name(const __grid_constant__ bench::LaneArgs args) { \
    lane_flow<Group, Atomics, checked>(args, number);                                      \
  }
#define BENCH_FLOWS(name, Group, Atomics, attribute, number) \
  BENCH_FLOW(name, Group, Atomics, attribute, number, false) \
  BENCH_FLOW(name##_checked, Group, Atomics, attribute, number, true)
// Also the checked kernels and the flows. BENCH_TIMED_PINGPONGS: only the timed kernels, to inspect
// their compiled code.
#ifdef BENCH_TIMED_PINGPONGS
#define BENCH_LANE(name, Group, attribute, number) BENCH_PINGPONG(name, Group, attribute, false)
#define BENCH_SINGLE(name, Group, attribute, number)
#else
#define BENCH_LANE(name, Group, attribute, number)       \
  BENCH_PINGPONG(name, Group, attribute, false)          \
  BENCH_PINGPONG(name##_checked, Group, attribute, true) \
  BENCH_FLOWS(name, Group, onehop::detail::DeviceAtomics, attribute, number)
#define BENCH_SINGLE(name, Group, attribute, number) \
  BENCH_FLOWS(single_##name, Group, bench::SingleAtomics, attribute, number)
#endif

BENCH_LANE(warp, onehop::WarpGroup, , blockIdx.x)
BENCH_LANE(block, onehop::BlockGroup, , blockIdx.x)
BENCH_SINGLE(block, onehop::BlockGroup, , blockIdx.x)
#if __CUDA_ARCH__ >= 900
BENCH_LANE(cluster, onehop::ClusterGroup, __cluster_dims__(bench::kClusterBlocks),
           blockIdx.x / bench::kClusterBlocks)
BENCH_SINGLE(cluster, onehop::ClusterGroup, __cluster_dims__(bench::kClusterBlocks),
             blockIdx.x / bench::kClusterBlocks)
#endif

BENCH_KERNEL bench_put(const __grid_constant__ bench::PutArgs args) {
  constexpr uint64_t kTile = 4096;
  const uint64_t tiles = (args.bytes + kTile - 1) / kTile;
  const uint64_t begin = tiles * blockIdx.x / gridDim.x * kTile;
  const uint64_t behind = tiles * (blockIdx.x + 1) / gridDim.x * kTile;
  const uint64_t end = behind < args.bytes ? behind : args.bytes;
  onehop::BlockGroup block;
  onehop::put_signal(args.remote, begin, block, reinterpret_cast<const uint8_t*>(args.data) + begin,
                     end > begin ? end - begin : 0, args.lane, static_cast<uint32_t>(args.slot));
}

// Side 1 answers a message that it has already counted.
BENCH_KERNEL bench_line_send(const __grid_constant__ LineArgs args) {
  await_turn();
  const uint32_t received = reinterpret_cast<const LineCount*>(args.count)->received;
  send_lines(args, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x,
             received + (args.payload.side == 0 ? 1 : 0));
}
BENCH_KERNEL bench_line_recv(const __grid_constant__ LineArgs args) {
  await_turn();
  LineCount* count = reinterpret_cast<LineCount*>(args.count);
  const uint32_t number = count->received + 1;
  receive_lines(args, blockIdx.x * blockDim.x + threadIdx.x, gridDim.x * blockDim.x, number);
  __syncthreads();
  // The last block counts the message: all blocks have read the count by then.
  if (threadIdx.x != 0) return;
  if (gridDim.x > 1) {
    if (atomicAdd(&count->blocks, 1u) + 1 != gridDim.x) return;
    count->blocks = 0;
  }
  count->received = number;
}

BENCH_KERNEL bench_line_pingpong(const __grid_constant__ LineArgs args) {
  line_pingpong<false>(args);
}
BENCH_KERNEL bench_line_pingpong_checked(const __grid_constant__ LineArgs args) {
  line_pingpong<true>(args);
}
