// SPDX-License-Identifier: Apache-2.0
//
// Streams: a queue of operations each, and a worker thread, started by the first operation.
//
// Threading: StreamState is under World::mutex. An operation runs on the worker without the lock,
// as do those of a graph, or on threads that it starts (graphs.h).
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>

#include "call.h"

namespace oh::cuda::fake {

struct StreamState;

struct Operation {
  std::function<Code()> work;  // an error puts the context into that error
  bool is_copy = false;
  bool is_kernel = false;
  // Not null: a launch of this graph in place of `work`; its nodes count as operations.
  std::shared_ptr<GraphExecState> graph = nullptr;
  uint64_t turn = 0;  // position among the launches of the graph
  // The operation starts once each of these streams has completed this many operations.
  std::vector<std::pair<std::shared_ptr<StreamState>, uint64_t>> after = {};
};

struct StreamState {
  Stream handle = nullptr;  // null: a default stream
  uint64_t id = 0;
  std::shared_ptr<ContextState> context;
  unsigned flags = 0;
  std::deque<Operation> queue;
  uint64_t submitted = 0;  // operations
  uint64_t done = 0;
  bool started = false;          // the worker thread exists
  std::condition_variable wake;  // notified when the worker may have something to do
  bool held = false;
  bool closed = false;  // the worker exits when the queue is empty
  std::shared_ptr<Capture> capture;
  std::vector<size_t> after;  // nodes of the capture that the stream's next node depends on
};

// Appends an operation, or records it into the stream's capture. An error: the capture is invalid.
Code submit(World& world, const std::shared_ptr<StreamState>& stream, Operation operation);
// Runs an operation that has work on the calling thread, with the lock released.
void perform(std::unique_lock<std::mutex>& lock, ContextState& context, const Operation& operation);
// Releases the lock and waits until the stream has completed this many operations.
void wait_for(std::unique_lock<std::mutex>& lock, const StreamState& stream, uint64_t ticket);
// Queued operations still run.
void close_stream(StreamState& stream);
// Wakes the workers whose next operation could not start.
void wake_stalled(const World& world);
// The legacy default stream of the context, or that of the calling thread.
std::shared_ptr<StreamState> default_stream(World& world,
                                            const std::shared_ptr<ContextState>& context,
                                            bool per_thread);

}  // namespace oh::cuda::fake
