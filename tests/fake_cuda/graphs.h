// SPDX-License-Identifier: Apache-2.0
//
// Graphs: operations with an order, and launches of them.
//
// Threading: under World::mutex; a GraphState is constant once its capture has ended.
#pragma once

#include <vector>

#include "streams.h"

namespace oh::cuda::fake {

struct Node {
  Operation operation;
  std::shared_ptr<ContextState> context;
  size_t after = 0;          // nodes that come before it
  std::vector<size_t> next;  // nodes that come after it
};

struct GraphState {
  std::vector<Node> nodes;  // each behind those that it comes after
};

struct GraphExecState {
  std::shared_ptr<const GraphState> graph;
  // Launches, on whatever streams: one after the other.
  uint64_t launched = 0;
  uint64_t done = 0;
};

// Runs one launch of the graph, on the worker of its stream; nodes that have no order run at once,
// on threads of their own. Lets the lock go.
void replay(std::unique_lock<std::mutex>& lock, const GraphState& graph);

}  // namespace oh::cuda::fake
