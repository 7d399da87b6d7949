// SPDX-License-Identifier: Apache-2.0
//
// Device memory of every kind, for the conformance tests: allocated through the driver that the
// library under test uses, the real one or the fake.
//
// Threading: any thread; each allocation has one owner.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

namespace conformance {

enum class MemoryKind {
  kPrivate,  // host memory of the process
  kShared,   // host memory that onehop shares
  kMalloc,   // cudaMalloc
  kInside,   // the same, not at the start of the allocation
  kVmm,      // several chunks in one reservation, as PyTorch's expandable segments
  kPool,     // a pool that can be exported
  kAsync,    // the default pool of cudaMallocAsync, which cannot
  kManaged,
  kPinned,  // host memory that the driver allocated
};
inline bool on_device(MemoryKind kind) {
  return kind >= MemoryKind::kMalloc && kind != MemoryKind::kPinned;
}

// The driver of this process, and the device on which this thread allocates from now on: with fewer
// devices than `ordinal` several share one. Its ordinal.
int use_device(const std::string& library, int ordinal);

void* allocate(MemoryKind kind, size_t size);
void release(MemoryKind kind, void* data, size_t size);
void write_device(void* to, const void* from, size_t size);
void read_device(void* to, const void* from, size_t size);

// Bytes of the device that nobody uses, in any process.
size_t free_device_memory();

// What an application may do that waits for kernels that run: the first launch of one of its own
// (and then until it is over), and the wait for all of the device.
void launch_first_kernel();
void synchronize_device();
// Records a copy into a graph, and forgets it.
void capture_copy(void* to, const void* from, size_t size);

// A graph, ready to be launched, of what `work` does on the stream and on those that it forks from
// it and joins. The stream is captured for this thread only.
void* capture_graph(void* stream, const std::function<void()>& work);
// Once more, behind what the stream has got.
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph);

// A stream of the application's, and work on it that takes a while.
void* make_stream();
void synchronize_stream(void* stream);
void destroy_stream(void* stream);
void destroy_stream_under_way(void* stream);  // without waiting for its work
void copy_on(void* stream, void* to, const void* from, size_t size);
void* make_event();
void record_event(void* event, void* stream);
void destroy_event(void* event);
// Keeps the stream busy until `*go` is not 0.
void block_stream(void* stream, std::atomic<bool>* go);

}  // namespace conformance
