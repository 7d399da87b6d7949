// SPDX-License-Identifier: Apache-2.0
//
// Node: what all endpoints of a process share: the watcher's thread, the listening sockets (one
// Unix name, one Unix path, one TCP port), and the table of endpoints that may be connected to.
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
  // The process's node; made by the first endpoint with its configuration, gone with the last.
  // OH_ERR_CONFIG: this configuration asks for other sockets than those which open endpoints use.
  static Result<std::shared_ptr<Node>> get(const Config& config);
  ~Node();

  Watcher& watcher() { return *watcher_; }
  const Id& process() const { return process_; }

  void add_acceptor(const Id& endpoint, std::weak_ptr<Acceptor> acceptor);
  void remove_acceptor(const Id& endpoint);
  std::shared_ptr<Acceptor> find_acceptor(const Id& endpoint);
  bool has_acceptors();
  // An endpoint uses a GPU near this NUMA node, or does not any more. The watcher runs there as
  // long as that is so of all of them.
  void add_numa(int node);
  void remove_numa(int node);
  // Tells all of them.
  void memory_gone(uint32_t number);

  // Fills in how this process is reached.
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
  std::map<int, size_t> numa_nodes_ OH_GUARDED_BY(mutex_);  // endpoints near each
  std::map<Id, std::weak_ptr<Acceptor>> acceptors_ OH_GUARDED_BY(mutex_);
  std::unique_ptr<SocketSweep> sweep_ OH_GUARDED_BY(mutex_);  // while it runs; uses the watcher
};

}  // namespace oh
