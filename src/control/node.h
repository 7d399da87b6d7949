// SPDX-License-Identifier: Apache-2.0
//
// Node: shared by all endpoints of a process. It owns the watcher's thread, the listening sockets
// (one Unix name, one Unix path, one TCP port), and the table of endpoints that accept links.
//
// Threading: any thread.
#pragma once

#include <map>
#include <memory>

#include "base/config.h"
#include "base/sync.h"
#include "control/listener.h"
#include "control/socket_files.h"
#include "control/watcher.h"

namespace oh {

class Node {
 public:
  // The process's node: the first endpoint creates it with its configuration, the last one destroys
  // it. OH_ERR_CONFIG: `config` requires different sockets than those of the open endpoints.
  static Result<std::shared_ptr<Node>> get(const Config& config);
  ~Node();

  Watcher& watcher() { return *watcher_; }
  const Id& process() const { return process_; }

  void add_acceptor(const Id& endpoint, std::weak_ptr<Acceptor> acceptor);
  // Also ends the handshakes with the acceptor: nothing of the node refers to it any more.
  void remove_acceptor(const Id& endpoint, const Acceptor& acceptor);
  std::shared_ptr<Acceptor> find_acceptor(const Id& endpoint);
  bool has_acceptors();
  // If no acceptor is left, waits for the watcher's callbacks. One may hold the last reference to
  // an endpoint, and would destroy it, and its worker of UCX, while the process exits.
  void await_last_callbacks();
  // Counts the endpoints whose GPU is near this NUMA node. While all counted endpoints are near the
  // same node, the watcher runs there.
  void add_numa(int node);
  void remove_numa(int node);
  // Calls on_memory_gone() of all acceptors.
  void memory_gone(uint32_t number);

  // Fills in the process id, the label and the socket addresses of this process.
  void describe(Address* address) const;

 private:
  Node() = default;
  Status start(const Config& config);
  Status check(const Config& config);
  Status listen(const Config& config);

  Id process_{};
  Config config_;
  std::string label_;
  std::string unix_name_;
  std::string unix_path_;
  std::vector<SocketAddress> hosts_;
  std::unique_ptr<Watcher> watcher_;
  std::unique_ptr<Listener> listener_;

  void start_sweep();
  void place_watcher() OH_REQUIRES(mutex_);

  Mutex mutex_;
  std::map<int, size_t> numa_nodes_ OH_GUARDED_BY(mutex_);  // number of endpoints per node
  std::map<Id, std::weak_ptr<Acceptor>> acceptors_ OH_GUARDED_BY(mutex_);
  std::unique_ptr<SocketSweep> sweep_ OH_GUARDED_BY(mutex_);  // null unless it runs; uses watcher_
};

}  // namespace oh
