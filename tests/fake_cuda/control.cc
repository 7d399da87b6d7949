// SPDX-License-Identifier: Apache-2.0
//
// The control interface; control.h.
//
// Threading: any thread.
#include "control.h"

#include <cstring>

#include "capture.h"

#define FAKE_CUDA_API extern "C" __attribute__((visibility("default")))

namespace {
using namespace oh::cuda;
using namespace oh::cuda::fake;

StreamState* find_stream(World& world, void* handle) {
  const auto stream = static_cast<Stream>(handle);
  if (!is_legacy(stream) && !is_per_thread(stream)) {
    const auto found = world.streams.find(stream);
    return found == world.streams.end() ? nullptr : found->second.get();
  }
  const ContextStack& stack = thread_state().stack;
  if (stack.size == 0) return nullptr;
  const auto context = world.context(stack.contexts[stack.size - 1]);
  return context == nullptr ? nullptr : default_stream(world, context, is_per_thread(stream)).get();
}

int set_held(void* handle, bool held) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  StreamState* stream = find_stream(world, handle);
  if (stream == nullptr) return -1;
  stream->held = held;
  wake_stalled(world);
  return 0;
}

void set_all_held(bool held) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  world.hold_all = held;
  wake_stalled(world);
}

// Accesses live memory, also across adjacent VMM mappings.
template <typename Move>
int with_bytes(uint64_t address, size_t size, const Move& move) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  size_t offset = 0;
  while (offset < size) {
    const Range* range = world.find(address + offset);
    if (range == nullptr) return -1;
    const size_t start = address + offset - range->base;
    const size_t take = std::min(size - offset, range->size - start);
    move(range->bytes + start, offset, take);
    offset += take;
  }
  return 0;
}

}  // namespace

FAKE_CUDA_API void fake_cuda_counts(FakeCudaCounts* counts) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  *counts = FakeCudaCounts{};
  for (const auto& context : world.contexts) {
    if (context != nullptr) counts->contexts += context->retained;
  }
  counts->streams = world.streams.size();
  counts->events = world.events.size();
  counts->reservations = world.reservations.size();
  counts->vmm_handles = world.vmm_handles.size();
  counts->modules = world.modules.size();
  counts->graphs = world.graphs.size();
  counts->graph_execs = world.graph_execs.size();
  for (const auto& [handle, pool] : world.pools) counts->pools += pool->is_default ? 0 : 1;
  for (const auto& [base, range] : world.ranges) {
    if (range.kind == Kind::kHostAlias) continue;
    if (range.kind == Kind::kVmm) {
      ++counts->mappings;
    } else if (range.imported) {
      ++counts->imports;
    } else if (range.registered) {
      ++counts->host_registrations;
    } else {
      ++counts->allocations;
    }
  }
}

FAKE_CUDA_API uint64_t fake_cuda_calls(const char* symbol) {
  const Symbol found = find_symbol(symbol);
  return found == Symbol::kCount ? UINT64_MAX : Faults::instance().visits(found);
}

FAKE_CUDA_API int fake_cuda_fail(const char* where, uint64_t nth, int code) {
  return Faults::instance().add({where, nth, code}) ? 0 : -1;
}

FAKE_CUDA_API void fake_cuda_clear_failures(void) { Faults::instance().clear(); }

FAKE_CUDA_API int fake_cuda_peek(uint64_t address, void* bytes, size_t size) {
  return with_bytes(address, size, [&](const char* at, size_t offset, size_t take) {
    char* to = static_cast<char*>(bytes) + offset;
    // Whole words: a running kernel may write them concurrently.
    for (; take >= sizeof(uint64_t) && reinterpret_cast<uintptr_t>(at) % sizeof(uint64_t) == 0;
         take -= sizeof(uint64_t), at += sizeof(uint64_t), to += sizeof(uint64_t)) {
      const uint64_t word =
          __atomic_load_n(reinterpret_cast<const uint64_t*>(at), __ATOMIC_ACQUIRE);
      memcpy(to, &word, sizeof(word));
    }
    memcpy(to, at, take);
  });
}

FAKE_CUDA_API int fake_cuda_poke(uint64_t address, const void* bytes, size_t size) {
  return with_bytes(address, size, [&](char* at, size_t offset, size_t take) {
    memcpy(at, static_cast<const char*>(bytes) + offset, take);
  });
}

FAKE_CUDA_API int fake_cuda_hold(void* stream) { return set_held(stream, true); }
FAKE_CUDA_API int fake_cuda_release(void* stream) { return set_held(stream, false); }
FAKE_CUDA_API void fake_cuda_hold_all(void) { set_all_held(true); }
FAKE_CUDA_API void fake_cuda_release_all(void) { set_all_held(false); }

FAKE_CUDA_API int64_t fake_cuda_captured(void* stream) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  const StreamState* found = find_stream(world, stream);
  if (found == nullptr || found->capture == nullptr) return -1;
  return static_cast<int64_t>(found->capture->graph.nodes.size());
}

FAKE_CUDA_API unsigned fake_cuda_blocks(const char* kernel) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  const auto found = world.blocks.find(kernel);
  return found == world.blocks.end() ? 0 : found->second;
}

FAKE_CUDA_API size_t fake_cuda_running(void) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  size_t sum = 0;
  for (const auto& context : world.contexts) sum += context == nullptr ? 0 : context->running;
  return sum;
}

FAKE_CUDA_API size_t fake_cuda_blocked(void) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  return world.blocked;
}

FAKE_CUDA_API void fake_cuda_delay(unsigned microseconds) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  world.delay_us = microseconds;
}
