// SPDX-License-Identifier: Apache-2.0
#include "control/node.h"

#include <unistd.h>

#include "base/log.h"
#include "platform/os/fork.h"

namespace oh {
namespace {

// The last reference may be dropped by a callback on the watcher's thread, which cannot join
// itself.
void destroy(Node* node) {
  if (!node->watcher().on_thread()) {
    delete node;
    return;
  }
  unsigned long thread = 0;
  auto body = [](void* context) { delete static_cast<Node*>(context); };
  // If no thread can be started, the node leaks: it is idle and costs a thread.
  if (start_thread("onehop-cleanup", body, node, &thread).ok()) pthread_detach(thread);
}

std::string process_label() {
  char host[65] = "?";
  gethostname(host, sizeof(host) - 1);
  return strf("%s:%d", host, getpid());
}

}  // namespace

Result<std::shared_ptr<Node>> Node::get(const Config& config) {
  struct Known {
    Mutex mutex;
    std::weak_ptr<Node> node;
  };
  // The parent's node has no thread in a child of fork(). It stays: what holds it is poisoned, too.
  Known& known = of_this_process([] { return new Known; });
  MutexLock lock(known.mutex);
  std::shared_ptr<Node> node = known.node.lock();
  if (node) {
    Status status = node->check(config);
    if (status.ok()) return node;
    // A node whose endpoints are all closed does not block a new one; it is destroyed with the last
    // handle.
    if (node->has_acceptors()) return status;
    node.reset();
  }
  std::unique_ptr<Node> made(new Node);
  OH_RETURN_IF_ERROR(made->start(config));
  node = std::shared_ptr<Node>(made.release(), destroy);
  known.node = node;
  return node;
}

Node::~Node() {
  if (watcher_) watcher_->stop();  // before the members that its callbacks use are destroyed
  if (!unix_path_.empty()) unlink(unix_path_.c_str());
}

// OH_ERR_CONFIG: a setting that all endpoints of the process share differs.
Status Node::check(const Config& config) {
  auto compare = [](const char* name, const std::string& used, const std::string& wanted) {
    if (used == wanted) return Status();
    return error(OH_ERR_CONFIG,
                 "%s=%s comes too late: the open endpoints of this process use %s, and all share "
                 "their sockets. Set it before the first endpoint or communicator, or close all of "
                 "them first",
                 name, wanted.c_str(), used.c_str());
  };
  auto range = [](const Config& of) { return strf("%u-%u", of.port_first, of.port_last); };
  auto seconds = [](const Config& of) { return strf("%g", of.hello_timeout); };
  OH_RETURN_IF_ERROR(compare("ONEHOP_INTERFACE", config_.interface_name, config.interface_name));
  OH_RETURN_IF_ERROR(compare("ONEHOP_PORT_RANGE", range(config_), range(config)));
  OH_RETURN_IF_ERROR(compare("ONEHOP_SOCKET_DIR", config_.socket_dir, config.socket_dir));
  return compare("ONEHOP_HELLO_TIMEOUT", seconds(config_), seconds(config));
}

bool Node::has_acceptors() {
  MutexLock lock(mutex_);
  return !acceptors_.empty();
}

Status Node::start(const Config& config) {
  config_ = config;
  OH_ASSIGN_OR_RETURN(process_, process_identity());
  label_ = process_label();
  OH_ASSIGN_OR_RETURN(watcher_, Watcher::start());
  listener_ = std::make_unique<Listener>(*watcher_, config.hello_timeout_ns(),
                                         [this](const Id& id) { return find_acceptor(id); });
  return listen(config);
}

Status Node::listen(const Config& config) {
  // A unique name: a previous node of this process may still be shutting down.
  OH_ASSIGN_OR_RETURN(Id unique, random_id());
  std::string name = "onehop-" + id_text(unique);
  Result<UniqueFd> abstract = listen_on(SocketAddress::unix_abstract(name));
  if (abstract.ok()) {
    OH_RETURN_IF_ERROR(listener_->add(std::move(*abstract)));
    unix_name_ = name;
  }
  std::string path = config.socket_dir + "/" + name;
  Result<UniqueFd> file = listen_on_file(config.socket_dir, name);
  if (file.ok()) {
    unix_path_ = path;
    OH_RETURN_IF_ERROR(listener_->add(std::move(*file)));
  }
  if (!abstract.ok() && !file.ok()) return file.status();
  start_sweep();

  Result<std::vector<SocketAddress>> hosts = reachable_addresses(config.interface_name);
  if (!hosts.ok() && config.interface_name == "any") {
    OH_LOG(kWarn, "no network interface is up: this process can be reached on this host only");
    return {};
  }
  OH_RETURN_IF_ERROR(hosts.status());
  uint16_t port = 0;
  OH_ASSIGN_OR_RETURN(
      std::vector<UniqueFd> tcp,
      listen_in_range(config.interface_name, config.port_first, config.port_last, &port));
  if (tcp.empty()) {
    OH_LOG(kWarn,
           "no TCP port of %s is free: this process can be reached on this host only (raise "
           "ONEHOP_PORT_RANGE)",
           config.port_range.c_str());
    return {};
  }
  for (UniqueFd& socket : tcp) OH_RETURN_IF_ERROR(listener_->add(std::move(socket)));
  hosts_ = std::move(*hosts);
  for (SocketAddress& host : hosts_) host.set_port(port);
  return {};
}

// When the sweep ends, a task on the watcher joins its thread.
void Node::start_sweep() {
  auto join = [this] {
    std::unique_ptr<SocketSweep> ended;
    MutexLock lock(mutex_);
    ended.swap(sweep_);
  };
  MutexLock lock(mutex_);
  sweep_ = SocketSweep::start(config_.socket_dir, [this, join] { watcher_->post(join); });
}

void Node::add_acceptor(const Id& endpoint, std::weak_ptr<Acceptor> acceptor) {
  MutexLock lock(mutex_);
  acceptors_[endpoint] = std::move(acceptor);
}

void Node::remove_acceptor(const Id& endpoint, const Acceptor& acceptor) {
  {
    MutexLock lock(mutex_);
    acceptors_.erase(endpoint);
  }
  watcher_->run([&] { listener_->drop_those_of(acceptor); });
}

void Node::await_last_callbacks() {
  if (!has_acceptors()) watcher_->await_callbacks();
}

std::shared_ptr<Acceptor> Node::find_acceptor(const Id& endpoint) {
  MutexLock lock(mutex_);
  auto found = acceptors_.find(endpoint);
  return found == acceptors_.end() ? nullptr : found->second.lock();
}

void Node::add_numa(int node) {
  MutexLock lock(mutex_);
  if (numa_nodes_[node]++ == 0) place_watcher();
}

void Node::remove_numa(int node) {
  MutexLock lock(mutex_);
  if (--numa_nodes_[node] > 0) return;
  numa_nodes_.erase(node);
  place_watcher();
}

void Node::place_watcher() {
  watcher_->move_to(numa_nodes_.size() == 1 ? numa_nodes_.begin()->first : -1);
}

void Node::memory_gone(uint32_t number) {
  std::vector<std::shared_ptr<Acceptor>> all;
  {
    MutexLock lock(mutex_);
    for (auto& [id, acceptor] : acceptors_) all.push_back(acceptor.lock());
  }
  for (const std::shared_ptr<Acceptor>& acceptor : all) {
    if (acceptor) acceptor->on_memory_gone(number);
  }
}

void Node::describe(Address* address) const {
  address->process = process_;
  address->label = label_;
  address->unix_name = unix_name_;
  address->unix_path = unix_path_;
  address->hosts = hosts_;
}

}  // namespace oh
