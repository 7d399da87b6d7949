// SPDX-License-Identifier: Apache-2.0
//
// Streams: a queue of operations, and a worker thread from the first one on.
//
// Threading: StreamState is under World::mutex. An operation runs on the worker without the lock,
// as do those of a graph, or on threads that it starts (graphs.h).
#pragma once

#include <deque>
#include <functional>

#include "call.h"

namespace oh::cuda::fake {

struct StreamState;

struct Operation {
  std::function<Code()> work;  // a code that is not kSuccess puts the context into that error
  bool is_copy = false;
  bool is_kernel = false;
  // Not null: a launch of it, in place of the work; its nodes are operations.
  std::shared_ptr<GraphExecState> graph = nullptr;
  uint64_t turn = 0;  // among the launches of the graph
  // Runs once these streams have done so many operations.
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
  bool started = false;  // the worker
  bool held = false;
  bool closed = false;  // the worker leaves when the queue is empty
  std::shared_ptr<Capture> capture;
  std::vector<size_t> after;  // nodes of the capture that its next one comes after
};

// Appends an operation, or records it into the stream's capture. A code: that is invalid.
Code submit(World& world, const std::shared_ptr<StreamState>& stream, Operation operation);
// Runs an operation that has work, on the calling thread, without the lock.
void perform(std::unique_lock<std::mutex>& lock, ContextState& context, const Operation& operation);
// Lets the lock go until the stream has done so many operations.
void wait_for(std::unique_lock<std::mutex>& lock, const StreamState& stream, uint64_t ticket);
// What is queued still runs.
void close_stream(StreamState& stream);
// The legacy default stream of the context, or that of the calling thread.
std::shared_ptr<StreamState> default_stream(World& world,
                                            const std::shared_ptr<ContextState>& context,
                                            bool per_thread);

}  // namespace oh::cuda::fake
