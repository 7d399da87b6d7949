// SPDX-License-Identifier: Apache-2.0
//
// IncomingLinks: where links go that other endpoints have opened: to the communicator that they are
// for, or into the queue that accept() takes them from.
//
// Threading: any thread.
#pragma once

#include <deque>
#include <memory>

#include "base/sync.h"
#include "endpoint/pairing.h"

namespace oh {

// Decides about links that come in for a communicator; set by it.
class LinkGate {
 public:
  virtual ~LinkGate() = default;
  // Whether a link from that rank is wanted; OH_AGAIN: ours to it is under way and wins.
  virtual Status admit(const LinkPurpose& purpose) = 0;
  // Afterwards, one of the two.
  virtual void linked(const LinkPurpose& purpose, std::shared_ptr<Peer> peer) = 0;
  virtual void abandoned(const LinkPurpose& purpose) = 0;
};

class IncomingLinks {
 public:
  explicit IncomingLinks(Endpoint& endpoint) : endpoint_(endpoint) {}

  void set_gate(std::weak_ptr<LinkGate> gate);
  // First admit(), then deliver() or abandoned().
  Status admit(const LinkPurpose& purpose);
  void deliver(const LinkPurpose& purpose, std::shared_ptr<Peer> peer);
  void abandoned(const LinkPurpose& purpose);

  // Takes the oldest of the queue, or waits for one.
  Result<std::shared_ptr<Peer>> accept(Deadline deadline);
  // Whether accept() would return at once; a failure says that no peer will come.
  Result<bool> has_peer() const;
  void clear();

 private:
  std::shared_ptr<LinkGate> gate() const;
  std::shared_ptr<Peer> take();

  Endpoint& endpoint_;
  mutable Mutex mutex_;
  std::deque<std::shared_ptr<Peer>> accepted_ OH_GUARDED_BY(mutex_);
  std::weak_ptr<LinkGate> gate_ OH_GUARDED_BY(mutex_);
};

}  // namespace oh
