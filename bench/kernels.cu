// SPDX-License-Identifier: Apache-2.0
//
// The benchmark's own kernels: messages and puts by onehop/device.cuh, and what the same takes with
// bare loads and stores, to compare with. Checked kernels lay down and look at every byte.
#include "kernels.h"

#include "onehop/device.cuh"

namespace {

using bench::LineArgs;
using bench::LineCount;
using Payload = bench::KernelPayload;

// ---- Bytes that follow from the side, the round and their position

__device__ uint8_t pattern(uint32_t side, uint32_t round, uint64_t at) {
  uint32_t mixed =
      static_cast<uint32_t>(at >> 2) * 0x9e3779b9u + (2 * round + side + 1) * 0x85ebca6bu;
  mixed ^= mixed >> 15;
  mixed *= 0x2c1b3c6du;
  mixed ^= mixed >> 13;
  return static_cast<uint8_t>(mixed >> (8 * (at & 3)));
}

// What is to be sent, and where the other side's bytes will be, none of them.
template <typename Group>
__device__ void lay_down(Group& group, const Payload& payload, uint32_t round) {
  uint8_t* out = reinterpret_cast<uint8_t*>(payload.out);
  uint8_t* in = reinterpret_cast<uint8_t*>(payload.in);
  const bool spoil = payload.corrupt != 0 && payload.side == 0 && round + 1 == payload.rounds;
  group.sync();
  for (uint64_t i = group.rank(); i < payload.bytes; i += group.size()) {
    const uint8_t flip = spoil && i == payload.bytes / 2;
    out[i] = pattern(payload.side, round, i) ^ flip;
    in[i] = static_cast<uint8_t>(~pattern(1 - payload.side, round, i));
  }
  group.sync();
}

template <typename Group>
__device__ void look_at(Group& group, const Payload& payload, uint32_t round) {
  const uint8_t* in = reinterpret_cast<const uint8_t*>(payload.in);
  unsigned long long wrong = 0;
  for (uint64_t i = group.rank(); i < payload.bytes; i += group.size()) {
    wrong += in[i] != pattern(1 - payload.side, round, i);
  }
  if (wrong > 0) atomicAdd(reinterpret_cast<unsigned long long*>(payload.findings), wrong);
}

// ---- By lanes

template <typename Group, bool kChecked>
__device__ void lane_pingpong(const bench::LaneArgs& args) {
  const Payload& payload = args.payload;
  const void* out = reinterpret_cast<const void*>(payload.out);
  void* in = reinterpret_cast<void*>(payload.in);
  Group group;
  onehop::SendLane<Group> sender(args.lane, group);
  onehop::RecvLane<Group> receiver(args.lane, group);
  for (uint32_t round = 0; round < payload.rounds; ++round) {
    if (kChecked) lay_down(group, payload, round);
    if (payload.side == 0) sender.send(out, payload.bytes);
    receiver.recv(in, payload.bytes);
    if (payload.side != 0) sender.send(out, payload.bytes);
    if (kChecked) look_at(group, payload, round);
  }
  const oh_lane_fault sent = sender.close();
  const oh_lane_fault received = receiver.close();
  if (group.rank() == 0) {
    reinterpret_cast<bench::Findings*>(payload.findings)->fault =
        sent != OH_LANE_OK ? sent : received;
  }
}

// ---- By bare lines

struct Line {
  uint32_t words[3];
  uint32_t number;
};

// One access each, seen whole or not at all.
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
    if (kChecked) lay_down(block, payload, round);
    if (payload.side == 0) send_lines(args, threadIdx.x, blockDim.x, number);
    receive_lines(args, threadIdx.x, blockDim.x, number);
    if (payload.side != 0) send_lines(args, threadIdx.x, blockDim.x, number);
    __syncthreads();
    if (kChecked) look_at(block, payload, round);
  }
  __syncthreads();
  if (threadIdx.x == 0) count->received = before + payload.rounds;
}

// Waits for the end of the kernel before, and then lets the next one be launched: two are there at
// most.
__device__ void await_turn() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace

#define BENCH_KERNEL extern "C" __global__ void __launch_bounds__(512)

BENCH_KERNEL bench_lane_block(const __grid_constant__ bench::LaneArgs args) {
  lane_pingpong<onehop::BlockGroup, false>(args);
}
BENCH_KERNEL bench_lane_block_checked(const __grid_constant__ bench::LaneArgs args) {
  lane_pingpong<onehop::BlockGroup, true>(args);
}
BENCH_KERNEL bench_lane_warp(const __grid_constant__ bench::LaneArgs args) {
  lane_pingpong<onehop::WarpGroup, false>(args);
}
BENCH_KERNEL bench_lane_warp_checked(const __grid_constant__ bench::LaneArgs args) {
  lane_pingpong<onehop::WarpGroup, true>(args);
}

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

// Side 1 answers a message that it has counted already.
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
  // The last block counts the message; by then all have read the count.
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
