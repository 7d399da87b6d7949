// SPDX-License-Identifier: Apache-2.0
//
// One kernel per primitive of include/onehop/detail, for test_device_ptx.py to look at.
#include "onehop/detail/command.h"
#include "onehop/detail/device_atomics.h"
#include "onehop/detail/line.h"
#include "onehop/detail/word.h"

using namespace onehop::detail;
using A = DeviceAtomics;

#define KERNEL(name) extern "C" __global__ void name

KERNEL(load_relaxed)(const uint64_t* from, uint64_t* to) { *to = A::load_relaxed(from); }
KERNEL(store_relaxed)(uint64_t* to, uint64_t value) { A::store_relaxed(to, value); }
KERNEL(publish_word)(uint64_t* word, uint64_t count) { publish<A>(word, 3, count); }
KERNEL(poll_word)(const uint64_t* word, uint64_t* count) { *count = poll<A>(word, 3); }

KERNEL(write_one_line)(LineRing ring, uint64_t position, uint64_t bytes) {
  write_line<A>(ring, position, bytes);
}
KERNEL(read_one_line)(LineRing ring, uint64_t position, uint64_t* bytes, bool* there) {
  *there = read_line<A>(ring, position, bytes);
}
KERNEL(write_one_message)(LineRing ring, Part part, const void* source) {
  write_message<A>(ring, part, source);
}
KERNEL(read_one_message)(LineRing ring, Part part, void* target, bool* whole) {
  uint32_t asked = 0;
  *whole = read_message<A>(ring, part, target, [&asked] { return ++asked > 1000; });
}
KERNEL(read_one_length)(LineRing ring, uint64_t position, uint64_t* bytes, bool* there) {
  *there = read_length<A>(ring, position, bytes);
}

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
