// SPDX-License-Identifier: Apache-2.0
//
// The accepting side of the hello: listening sockets, and a state machine per stranger. A stranger
// has until the deadline to authenticate, may send messages of a few kilobytes only, and costs
// nothing but a descriptor. When too many are about, the oldest of the source with the most is told
// to come again. Strangers that have named an endpoint of ours do not compete with those that have
// not, and authenticated ones do not compete.
//
// Threading: runs on the watcher's thread; add() and close() from any thread.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "base/status.h"
#include "control/address.h"
#include "control/waiting_room.h"
#include "control/watcher.h"
#include "platform/os/message_socket.h"
#include "platform/os/net.h"

namespace oh {

// An authenticated initiator's wish.
struct IncomingOffer {
  Bytes greeting;
  Bytes offer;
  std::vector<UniqueFd> fds;
  bool lost_fds = false;  // as MessageSocket says
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
  // Our greeting for every Hello; must not depend on the stranger.
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

  // Of the strangers that have said nothing yet, and of those that have named an endpoint.
  static constexpr size_t kPlaces = 128;

 private:
  class Stranger;
  enum Stage : size_t { kSilent, kNamed, kProven, kStages };

  void admit(UniqueFd fd);
  void enter(std::shared_ptr<Stranger> stranger, Stage stage);
  void displace(Stranger& stranger);
  void advance(Stranger* stranger, Stage from, Stage to);
  void drop(const Stranger* stranger);
  void drop_late();
  void set_timer();

  Watcher& watcher_;
  int64_t hello_timeout_ns_;
  FindAcceptor find_;
  // The rest is the watcher's thread's.
  bool timer_set_ = false;
  std::array<WaitingRoom<Stranger>, kStages> rooms_{WaitingRoom<Stranger>(kPlaces),
                                                    WaitingRoom<Stranger>(kPlaces),
                                                    WaitingRoom<Stranger>(SIZE_MAX)};
  size_t displaced_ = 0;         // since the last warning
  int64_t next_warning_at_ = 0;  // of a crowd
};

}  // namespace oh
