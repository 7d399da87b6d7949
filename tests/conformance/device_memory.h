// SPDX-License-Identifier: Apache-2.0
//
// Device memory of every kind for the conformance tests. It is allocated through the driver that
// the library under test uses: the real one or the fake.
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
  kInside,   // the same, at an offset within the allocation
  kVmm,      // several chunks in one reservation, as in PyTorch's expandable segments
  kPool,     // an exportable pool
  kAsync,    // the default pool of cudaMallocAsync, which is not exportable
  kManaged,
  kPinned,  // host memory allocated by the driver
};
inline bool on_device(MemoryKind kind) {
  return kind >= MemoryKind::kMalloc && kind != MemoryKind::kPinned;
}

// Selects the driver of this process and the device on which this thread allocates from now on. If
// `ordinal` exceeds the number of devices, several ordinals share one. Returns the device's
// ordinal.
int use_device(const std::string& library, int ordinal);

void* allocate(MemoryKind kind, size_t size);
void release(MemoryKind kind, void* data, size_t size);
void write_device(void* to, const void* from, size_t size);
void read_device(void* to, const void* from, size_t size);

// Returns the device's free bytes, over all processes.
size_t free_device_memory();

// Two application calls that wait for running kernels: the first launch of a kernel of its own,
// followed by a wait for its completion, and device synchronisation.
void launch_first_kernel();
void synchronize_device();
// Captures a copy into a graph and discards the graph.
void capture_copy(void* to, const void* from, size_t size);

// Returns an executable graph of what `work` enqueues on the stream, and on streams that it forks
// and joins. The capture is thread-local.
void* capture_graph(void* stream, const std::function<void()>& work);
// Launches the graph after the stream's pending work.
void launch_graph(void* graph, void* stream);
void destroy_graph(void* graph);

// An application's stream, and long-running work on it.
void* make_stream();
void synchronize_stream(void* stream);
void destroy_stream(void* stream);
void destroy_stream_under_way(void* stream);  // without waiting for its work
void copy_on(void* stream, void* to, const void* from, size_t size);
void* make_event();
void record_event(void* event, void* stream);
void destroy_event(void* event);
// Blocks the stream until `*go` is not 0.
void block_stream(void* stream, std::atomic<bool>* go);

}  // namespace conformance
