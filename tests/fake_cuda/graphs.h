// SPDX-License-Identifier: Apache-2.0
//
// Graphs: operations with dependencies, and launches of them.
//
// Threading: under World::mutex; a GraphState is constant once its capture has ended.
#pragma once

#include <vector>

#include "streams.h"

namespace oh::cuda::fake {

struct Node {
  Operation operation;
  std::shared_ptr<ContextState> context;
  size_t after = 0;          // number of nodes that this one depends on
  std::vector<size_t> next;  // nodes that depend on this one
};

struct GraphState {
  std::vector<Node> nodes;  // in topological order
};

struct GraphExecState {
  std::shared_ptr<const GraphState> graph;
  // Launches, on any stream; they run one after the other.
  uint64_t launched = 0;
  uint64_t done = 0;
};

// Runs one launch of the graph on the worker of its stream; independent nodes run concurrently, on
// threads of their own. Releases the lock while operations run.
void replay(std::unique_lock<std::mutex>& lock, const GraphState& graph);

}  // namespace oh::cuda::fake
