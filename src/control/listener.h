// SPDX-License-Identifier: Apache-2.0
//
// The accepting side of the hello: listening sockets, and a state machine per stranger. A stranger
// has until the deadline to authenticate, may send messages of a few kilobytes only, and costs
// nothing but a descriptor; when too many are about, the oldest goes.
//
// Threading: runs on the watcher's thread; add() and close() from any thread.
#pragma once

#include <functional>
#include <list>
#include <memory>
#include <vector>

#include "base/status.h"
#include "control/address.h"
#include "control/watcher.h"
#include "platform/os/message_socket.h"
#include "platform/os/net.h"

namespace oh {

// An authenticated initiator's wish.
struct IncomingOffer {
  Bytes greeting;
  Bytes offer;
  std::vector<UniqueFd> fds;
  PeerCredentials credentials;
  bool local = false;
};

// What an acceptor made of an offer; lives until the initiator confirms or goes away.
class IncomingLink {
 public:
  virtual ~IncomingLink() = default;
  virtual ByteView answer() const = 0;
  virtual std::vector<int> fds() const = 0;
  // The initiator's verdict; the socket belongs to the link now.
  virtual void confirmed(ByteView verdict, MessageSocket socket) = 0;
};

// An endpoint, as the listener sees it.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  virtual const Key& key() const = 0;
  virtual const Crypto& crypto() const = 0;
  // Our greeting for anybody who says hello; must not depend on him.
  virtual Bytes greeting() const = 0;
  // Sets up our side, or says why not.
  virtual Result<std::unique_ptr<IncomingLink>> on_offer(IncomingOffer offer) = 0;
  // Exported device memory of this process was freed: its peers are to let go of it.
  virtual void on_memory_gone(uint32_t /*number*/) {}
};

class Listener {
 public:
  using FindAcceptor = std::function<std::shared_ptr<Acceptor>(const Id& endpoint)>;
  // `watcher` must be stopped before the listener is destroyed.
  Listener(Watcher& watcher, int64_t hello_timeout_ns, FindAcceptor find);

  // Accepts links on this socket from now on.
  Status add(UniqueFd listening);

 private:
  class Stranger;
  void admit(UniqueFd fd);
  void drop_late();
  void drop(const Stranger* stranger);
  void renew(Stranger* stranger);

  static constexpr size_t kMaxStrangers = 256;
  Watcher& watcher_;
  int64_t hello_timeout_ns_;
  FindAcceptor find_;
  bool timer_set_ = false;
  std::list<std::shared_ptr<Stranger>> strangers_;  // watcher's thread only; oldest first
};

}  // namespace oh
