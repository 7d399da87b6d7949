// SPDX-License-Identifier: Apache-2.0
//
// One kernel per primitive of include/onehop/detail, for test_device_ptx.py to look at.
#include "onehop/detail/command.h"
#include "onehop/detail/cursor.h"
#include "onehop/detail/device_atomics.h"
#include "onehop/detail/word.h"
#include "onehop/device.cuh"

using namespace onehop::detail;
using A = DeviceAtomics;

#define KERNEL(name) extern "C" __global__ void name

KERNEL(load_relaxed)(const uint64_t* from, uint64_t* to) { *to = A::load_relaxed(from); }
KERNEL(store_relaxed)(uint64_t* to, uint64_t value) { A::store_relaxed(to, value); }
KERNEL(publish_word)(uint64_t* word, uint64_t count) { publish<A>(word, 3, count); }
KERNEL(poll_word)(const uint64_t* word, uint64_t* count) { *count = poll<A>(word, 3); }

KERNEL(load_one_line)(const Pair* from, Line* to) { *to = load_line<A>(from); }
KERNEL(store_one_line)(Pair* to, Line line) { store_line<A>(to, line); }
KERNEL(write_all_lines)(LineRing ring, uint64_t position, uint32_t rank, const uint8_t* source) {
  const WholeWords<const uint8_t> words{source, 1000};
  write_lines<A>(Cursor(ring, position), Share(rank, 32), words);
}
// Memory of any alignment and length.
KERNEL(load_any_word)(const uint8_t* source, uint32_t bytes, uint32_t at, uint32_t* to) {
  *to = AnyWords<const uint8_t>{source, bytes}.load(at);
}
KERNEL(store_any_word)(uint8_t* target, uint32_t bytes, uint32_t at, uint32_t word) {
  AnyWords<uint8_t>{target, bytes}.store(at, word);
}

// What the compiler may know of a lane, so that nothing is left of large messages.
__device__ oh_lane_handle small_only(oh_lane_handle lane) {
  lane.flags = 0;
  lane.ring_shift = 8;
  lane.small_max = 2048;
  return lane;
}
KERNEL(send_small_by_warp)(oh_lane_handle handle, const void* data) {
  const oh_lane_handle lane = small_only(handle);
  onehop::WarpGroup warp;
  onehop::send(lane, warp, data, 1000);
}
KERNEL(send_small_by_block)(oh_lane_handle handle, const void* data) {
  const oh_lane_handle lane = small_only(handle);
  onehop::BlockGroup block;
  onehop::send(lane, block, data, 1000);
}
KERNEL(recv_by_warp)(oh_lane_handle lane, void* data, uint64_t capacity) {
  onehop::WarpGroup warp;
  onehop::recv(lane, warp, data, capacity);
}
KERNEL(recv_by_block)(oh_lane_handle lane, void* data, uint64_t capacity) {
  onehop::BlockGroup block;
  onehop::recv(lane, block, data, capacity);
}
KERNEL(send_by_warp)(oh_lane_handle lane, const void* data, uint64_t bytes) {
  onehop::WarpGroup warp;
  onehop::send(lane, warp, data, bytes);
}
KERNEL(send_by_block)(oh_lane_handle lane, const void* data, uint64_t bytes) {
  onehop::BlockGroup block;
  onehop::send(lane, block, data, bytes);
}
KERNEL(give_credit)(oh_lane_handle handle, uint32_t position) {
  const oh_lane_handle lane = small_only(handle);
  Half<A> half(lane, 1);
  half.advance(position);
  half.give_credit();
}
KERNEL(post_a_target)(Pair* to, Posting posting, uint64_t position) {
  post<A>(to, 3, position, posting);
}
KERNEL(put_and_signal)(oh_remote_memory remote, oh_lane_handle lane, const void* data) {
  onehop::WarpGroup warp;
  onehop::put_signal(remote, 0, warp, data, 16, lane, 1);
}
KERNEL(put_and_signal_relaxed)(oh_remote_memory remote, oh_lane_handle lane, const void* data) {
  onehop::WarpGroup warp;
  onehop::put(remote, 0, warp, data, 16);
  onehop::relaxed_signal(lane, warp, 1);
}
// One fence for two signals.
KERNEL(flush_and_signal_relaxed)(oh_lane_handle lane, oh_lane_handle other) {
  onehop::WarpGroup warp;
  onehop::flush(warp);
  onehop::relaxed_signal(lane, warp, 1);
  onehop::relaxed_signal(other, warp, 1);
}
KERNEL(wait_for_signal)(oh_lane_handle lane, const uint64_t* data, uint64_t* to) {
  onehop::WarpGroup warp;
  onehop::wait(lane, warp, 1);
  *to = *data;
}
KERNEL(wait_until_signal)(oh_lane_handle lane, const uint64_t* data, uint64_t* to) {
  onehop::WarpGroup warp;
  onehop::wait_until(lane, warp, 1, 5);
  *to = *data;
}
KERNEL(read_one_signal)(oh_lane_handle lane, uint64_t* count) {
  onehop::WarpGroup warp;
  onehop::read_signal(lane, warp, 1, count);
}
KERNEL(set_one_signal)(oh_lane_handle lane, uint64_t count) {
  onehop::WarpGroup warp;
  onehop::set_signal(lane, warp, 1, count);
}
KERNEL(flush_puts)(oh_remote_memory remote, const void* data, volatile uint64_t* flag) {
  onehop::WarpGroup warp;
  onehop::put(remote, 0, warp, data, 16);
  onehop::flush(warp);
  *flag = 1;
}
KERNEL(get_by_warp)(oh_remote_memory remote, uint64_t* data) {
  onehop::WarpGroup warp;
  onehop::get(remote, 0, warp, data, 16);
  *data += 1;
}
KERNEL(fetch_add_there)(oh_remote_memory remote, uint64_t offset, uint64_t* before) {
  onehop::fetch_add(remote, offset, 7, before);
}
KERNEL(compare_swap_there)(oh_remote_memory remote, uint64_t offset, uint64_t* before) {
  onehop::compare_swap(remote, offset, 7, 8, before);
}
KERNEL(add_there)(oh_remote_memory remote, uint64_t offset) {
  onehop::fetch_add(remote, offset, 7);
}
#if __CUDA_ARCH__ >= 900
KERNEL(exchange_by_cluster)(oh_lane_handle lane, void* data, uint64_t bytes) {
  onehop::ClusterGroup cluster;
  onehop::send(lane, cluster, data, bytes);
  onehop::recv(lane, cluster, data, bytes);
}
#endif

KERNEL(write_one_command)(CommandRing ring, uint64_t position, Command command, bool* fitted) {
  *fitted = write_command<A>(ring, position, command);
}
KERNEL(read_one_lane)(CommandRing ring, uint64_t position, uint32_t* payload, bool* there) {
  *there = read_lane<A>(ring, position, threadIdx.x, payload);
}
KERNEL(read_one_command)(CommandRing ring, uint64_t position, Command* command, bool* there) {
  *there = read_command<A>(ring, position, command);
}
KERNEL(finish_one_command)(CommandRing ring, uint64_t position, Command command) {
  finish_command<A>(ring, position, command);
}
// Between the lane and the done word.
KERNEL(carry_out)(CommandRing ring, uint64_t position, Command command) {
  uint32_t payload[kLaneWords];
  if (!read_lane<A>(ring, position, 0, payload)) return;
  *reinterpret_cast<uint64_t*>(command.target) = *reinterpret_cast<const uint64_t*>(command.source);
  finish_command<A>(ring, position, command);
}
