// SPDX-License-Identifier: Apache-2.0
//
// The accepting side of the handshake: listening sockets, and a state machine per stranger (an
// unauthenticated connection). A stranger has a deadline to authenticate and may send small
// messages only. When there are too many strangers, the listener drops the oldest of the source
// with the most connections and asks it to retry. Strangers that have named a local endpoint and
// those that have not are counted apart; the number of authenticated connections is not limited.
//
// Threading: runs on the watcher's thread; add() from any thread.
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

// The offer of an authenticated initiator.
struct IncomingOffer {
  Bytes greeting;
  Bytes offer;
  std::vector<UniqueFd> fds;
  bool lost_fds = false;  // see MessageSocket::Message
  PeerCredentials credentials;
  bool local = false;
};

// A link that an acceptor has set up for an offer; lives until the initiator confirms or hangs up.
class IncomingLink {
 public:
  virtual ~IncomingLink() = default;
  virtual ByteView answer() const = 0;
  virtual std::vector<int> fds() const = 0;
  // Delivers the initiator's verdict and passes ownership of the socket.
  virtual void confirmed(ByteView verdict, MessageSocket socket) = 0;
};

// The listener's interface to an endpoint.
class Acceptor {
 public:
  virtual ~Acceptor() = default;
  virtual const Key& key() const = 0;
  virtual const Crypto& crypto() const = 0;
  // The local greeting, sent in every Proof; must not depend on the stranger.
  virtual Bytes greeting() const = 0;
  // Sets up the local side of the link; an error refuses the offer.
  virtual Result<std::unique_ptr<IncomingLink>> on_offer(IncomingOffer offer) = 0;
  // Exported device memory of this process was freed: peers must release their mappings of it.
  virtual void on_memory_gone(uint32_t /*number*/) {}
};

class Listener {
 public:
  using FindAcceptor = std::function<std::shared_ptr<Acceptor>(const Id& endpoint)>;
  // `watcher` must be stopped before the listener is destroyed.
  Listener(Watcher& watcher, int64_t hello_timeout_ns, FindAcceptor find);

  // Starts to accept links on this socket.
  Status add(UniqueFd listening);
  // Drops the strangers that have named this acceptor. On the watcher's thread.
  void drop_those_of(const Acceptor& acceptor);

  // Limit of strangers before their Hello, and the same of those that have named an endpoint.
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
  // The members below are used on the watcher's thread only.
  bool timer_set_ = false;
  std::array<WaitingRoom<Stranger>, kStages> rooms_{WaitingRoom<Stranger>(kPlaces),
                                                    WaitingRoom<Stranger>(kPlaces),
                                                    WaitingRoom<Stranger>(SIZE_MAX)};
  size_t displaced_ = 0;         // since the last warning
  int64_t next_warning_at_ = 0;  // of the warning about displaced strangers
};

}  // namespace oh
