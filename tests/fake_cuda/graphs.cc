// SPDX-License-Identifier: Apache-2.0
//
// Graphs and their launches.
//
// Threading: any thread. A launch uses the worker of its stream, and one more thread for each
// further branch; they end with the launch.
#include "graphs.h"

#include <utility>

namespace oh::cuda {
namespace fake {
namespace {

constexpr uint64_t kGraphFlags = 15;  // all flags of cuGraphInstantiate; the fake ignores them

class Replay {
 public:
  explicit Replay(const GraphState& graph) : graph_(graph), left_(graph.nodes.size()) {
    for (const Node& node : graph.nodes) waits_for_.push_back(node.after);
  }

  void run(std::unique_lock<std::mutex>& lock) {
    std::vector<size_t> first;
    for (size_t i = 0; i < graph_.nodes.size(); ++i) {
      if (waits_for_[i] == 0) first.push_back(i);
    }
    follow(lock, std::move(first));
    World::instance().changed.wait(lock, [this] { return left_ == 0; });
    lock.unlock();  // no more threads will be started
    for (std::thread& branch : branches_) branch.join();
    lock.lock();
  }

 private:
  // Runs the first ready node and the nodes that it makes ready; branches off the others.
  void follow(std::unique_lock<std::mutex>& lock, std::vector<size_t> ready) {
    while (!ready.empty()) {
      for (size_t i = 1; i < ready.size(); ++i) branch_off(ready[i]);
      const Node& node = graph_.nodes[ready[0]];
      perform(lock, *node.context, node.operation);
      ready.clear();
      for (size_t next : node.next) {
        if (--waits_for_[next] == 0) ready.push_back(next);
      }
      --left_;
      World::instance().changed.notify_all();
    }
  }

  // The worker blocks all signals, and its threads inherit the mask.
  void branch_off(size_t node) {
    branches_.emplace_back([this, node] {
      std::unique_lock<std::mutex> lock(World::instance().mutex);
      follow(lock, {node});
    });
  }

  const GraphState& graph_;
  std::vector<size_t> waits_for_;  // number of incomplete dependencies of each node
  size_t left_;
  std::vector<std::thread> branches_;
};

}  // namespace

void replay(std::unique_lock<std::mutex>& lock, const GraphState& graph) {
  Replay(graph).run(lock);
}

}  // namespace fake

using namespace fake;

Code cuGraphDestroy(Graph graph) {
  Call call(Symbol::cuGraphDestroy, kAnything);
  if (!call.ok()) return call.code();
  return call.world().graphs.erase(graph) != 0 ? kSuccess : kInvalidValue;
}

Code cuGraphInstantiateWithFlags(GraphExec* out, Graph graph, uint64_t flags) {
  Call call(Symbol::cuGraphInstantiateWithFlags, kContext);
  if (!call.ok()) return call.code();
  const auto found = call.world().graphs.find(graph);
  if (found == call.world().graphs.end() || (flags & ~kGraphFlags) != 0) return kInvalidValue;
  auto exec = std::make_shared<GraphExecState>();
  exec->graph = found->second;
  *out = call.world().new_handle<GraphExec>();
  call.world().graph_execs.emplace(*out, std::move(exec));
  return kSuccess;
}

Code cuGraphLaunch(GraphExec handle, Stream stream_handle) {
  Call call(Symbol::cuGraphLaunch, kContext);
  if (!call.ok()) return call.code();
  const auto found = call.world().graph_execs.find(handle);
  if (found == call.world().graph_execs.end()) return kInvalidValue;
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(stream_handle, &stream);
  if (code != kSuccess) return code;
  if (stream->capture != nullptr) return kNotSupported;  // child graphs are not supported
  Operation launch;
  launch.graph = found->second;
  launch.turn = launch.graph->launched++;
  return submit(call.world(), stream, std::move(launch));
}

Code cuGraphExecDestroy(GraphExec exec) {
  Call call(Symbol::cuGraphExecDestroy, kAnything);
  if (!call.ok()) return call.code();
  // Queued launches still run.
  return call.world().graph_execs.erase(exec) != 0 ? kSuccess : kInvalidValue;
}

}  // namespace oh::cuda
