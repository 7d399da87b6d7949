// SPDX-License-Identifier: Apache-2.0
//
// Stream operations on memory: copies, fills, writes of a word. Addresses are resolved when the
// operation runs, as on a device.
//
// Threading: any thread.
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "streams.h"

namespace oh::cuda {
using namespace fake;

namespace {

// An aligned word is copied in one access, as on devices: kernels may write it concurrently.
void move_piece(char* to, const char* from, size_t size) {
  constexpr size_t kWord = sizeof(uint64_t);
  if (size != kWord ||
      (reinterpret_cast<uintptr_t>(to) | reinterpret_cast<uintptr_t>(from)) % kWord) {
    memmove(to, from, size);
    return;
  }
  const uint64_t word = __atomic_load_n(reinterpret_cast<const uint64_t*>(from), __ATOMIC_RELAXED);
  __atomic_store_n(reinterpret_cast<uint64_t*>(to), word, __ATOMIC_RELAXED);
}

void move_bytes(const std::vector<Piece>& to, const std::vector<Piece>& from) {
  size_t t = 0;
  size_t f = 0;
  size_t to_offset = 0;
  size_t from_offset = 0;
  while (t < to.size() && f < from.size()) {
    const size_t size = std::min(to[t].size - to_offset, from[f].size - from_offset);
    move_piece(to[t].bytes + to_offset, from[f].bytes + from_offset, size);
    to_offset += size;
    from_offset += size;
    if (to_offset == to[t].size) ++t, to_offset = 0;
    if (from_offset == from[f].size) ++f, from_offset = 0;
  }
}

// Host memory that the driver does not know.
bool is_pageable(World& world, DevicePtr address) {
  return world.find(address) == nullptr && !Arena::instance().contains(address);
}

Operation copy_operation(std::shared_ptr<ContextState> context, DevicePtr to, DevicePtr from,
                         size_t size) {
  return {[context = std::move(context), to, from, size]() -> Code {
            std::vector<Piece> target;
            std::vector<Piece> source;
            {
              World& world = World::instance();
              std::lock_guard<std::mutex> lock(world.mutex);
              if (!world.resolve(to, size, *context, &target) ||
                  !world.resolve(from, size, *context, &source)) {
                return kIllegalAddress;
              }
            }
            move_bytes(target, source);
            return kSuccess;
          },
          true};
}

Operation fill_operation(std::shared_ptr<ContextState> context, DevicePtr to, unsigned char value,
                         size_t size) {
  return {[context = std::move(context), to, value, size]() -> Code {
    std::vector<Piece> target;
    {
      World& world = World::instance();
      std::lock_guard<std::mutex> lock(world.mutex);
      if (!world.resolve(to, size, *context, &target)) return kIllegalAddress;
    }
    for (const Piece& piece : target) memset(piece.bytes, value, piece.size);
    return kSuccess;
  }};
}

// Whether a device store is allowed: not through the host address, and only to memory that is
// mapped for the context.
bool may_store(const Range& range, const ContextState& context) {
  switch (range.kind) {
    case Kind::kHost:
      return false;
    case Kind::kHostAlias:
    case Kind::kManaged:
      return true;
    case Kind::kDevice:
      return range.ordinal == context.ordinal || context.peers.count(range.ordinal) != 0;
    case Kind::kImport:
      return range.context.get() == &context;
    case Kind::kVmm:
      return range.access.count(context.ordinal) != 0;
    case Kind::kPool:
      return range.pool->access.count(context.ordinal) != 0;
  }
  return false;
}

// Returns a word that the context may store to, at its host address; the pointer keeps the memory
// alive. Null: not live, or no access.
std::shared_ptr<uint64_t> word_at(const ContextState& context, DevicePtr address) {
  std::vector<Piece> target;
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  const Range* range = world.find(address);
  if (range == nullptr || !may_store(*range, context) ||
      !world.resolve(address, sizeof(uint64_t), context, &target) || target.size() != 1) {
    return nullptr;
  }
  return {target[0].keep, reinterpret_cast<uint64_t*>(target[0].bytes)};
}

Operation store_operation(std::shared_ptr<ContextState> context, DevicePtr to, uint64_t value) {
  return {[context = std::move(context), to, value]() -> Code {
    const std::shared_ptr<uint64_t> word = word_at(*context, to);
    if (word == nullptr) return kIllegalAddress;
    // Release: a thread that reads the word with acquire sees the preceding copies.
    __atomic_store_n(word.get(), value, __ATOMIC_RELEASE);
    return kSuccess;
  }};
}

// The worker polls the word, which must stay mapped, as on a device.
Operation wait_operation(std::shared_ptr<ContextState> context, DevicePtr word, uint64_t value) {
  return {[context = std::move(context), word, value]() -> Code {
    while (!context->killed.load(std::memory_order_relaxed)) {
      std::shared_ptr<uint64_t> found = word_at(*context, word);
      if (found == nullptr) return kIllegalAddress;
      // Acquire: writes before the word's are visible after the wait. The comparison is cyclic, as
      // on devices.
      const uint64_t beyond = __atomic_load_n(found.get(), __ATOMIC_ACQUIRE) - value;
      if (static_cast<int64_t>(beyond) >= 0) break;
      found.reset();  // a free during the sleep returns the memory at once
      usleep(20);
    }
    return kSuccess;
  }};
}

// A copy into pageable memory is complete when the call returns; a copy from it has read its
// source.
Code enqueue_copy(Call& call, const std::shared_ptr<StreamState>& stream, DevicePtr to,
                  DevicePtr from, size_t size) {
  World& world = call.world();
  if (stream->capture != nullptr) {
    return submit(world, stream, copy_operation(stream->context, to, from, size));
  }
  const bool into_pageable = is_pageable(world, to);
  if (into_pageable || !is_pageable(world, from)) {
    submit(world, stream, copy_operation(stream->context, to, from, size));
  } else {
    const char* bytes = reinterpret_cast<const char*>(from);
    auto staged = std::make_shared<std::vector<char>>(bytes, bytes + size);
    submit(world, stream,
           {[context = stream->context, staged, to, size]() -> Code {
              std::vector<Piece> target;
              {
                World& inner = World::instance();
                std::lock_guard<std::mutex> lock(inner.mutex);
                if (!inner.resolve(to, size, *context, &target)) return kIllegalAddress;
              }
              move_bytes(target, {{staged->data(), size, nullptr}});
              return kSuccess;
            },
            true});
  }
  if (into_pageable) {
    wait_for(call.lock(), *stream, stream->submitted);
    return stream->context->sticky;
  }
  return kSuccess;
}

}  // namespace

Code cuMemcpyAsync(DevicePtr to, DevicePtr from, size_t size, Stream handle) {
  Call call(Symbol::cuMemcpyAsync, kContext);
  if (!call.ok()) return call.code();
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess || size == 0) return code;
  return enqueue_copy(call, stream, to, from, size);
}

Code cuMemcpy(DevicePtr to, DevicePtr from, size_t size) {
  Call call(Symbol::cuMemcpy, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(Stream{}, &stream);
  if (code != kSuccess || size == 0) return code;
  submit(call.world(), stream, copy_operation(stream->context, to, from, size));
  wait_for(call.lock(), *stream, stream->submitted);
  return stream->context->sticky;
}

Code cuMemsetD8_v2(DevicePtr to, unsigned char value, size_t size) {
  Call call(Symbol::cuMemsetD8_v2, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(Stream{}, &stream);
  if (code != kSuccess || size == 0) return code;
  submit(call.world(), stream, fill_operation(stream->context, to, value, size));
  wait_for(call.lock(), *stream, stream->submitted);
  return stream->context->sticky;
}

Code cuMemsetD8Async(DevicePtr to, unsigned char value, size_t size, Stream handle) {
  Call call(Symbol::cuMemsetD8Async, kContext);
  if (!call.ok()) return call.code();
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess || size == 0) return code;
  return submit(call.world(), stream, fill_operation(stream->context, to, value, size));
}

Code cuStreamWriteValue64_v2(Stream handle, DevicePtr to, uint64_t value, unsigned flags) {
  Call call(Symbol::cuStreamWriteValue64_v2, kContext);
  if (!call.ok()) return call.code();
  if (to == 0 || to % sizeof(value) != 0 || flags > 1) return kInvalidValue;
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess) return code;
  return submit(call.world(), stream, store_operation(stream->context, to, value));
}

Code cuStreamWaitValue64_v2(Stream handle, DevicePtr word, uint64_t value, unsigned flags) {
  Call call(Symbol::cuStreamWaitValue64_v2, kContext);
  if (!call.ok()) return call.code();
  // Only CU_STREAM_WAIT_VALUE_GEQ is supported.
  if (word == 0 || word % sizeof(value) != 0 || flags != 0) return kInvalidValue;
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess) return code;
  return submit(call.world(), stream, wait_operation(stream->context, word, value));
}

}  // namespace oh::cuda
