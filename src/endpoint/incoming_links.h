// SPDX-License-Identifier: Apache-2.0
//
// IncomingLinks: dispatches links that other endpoints opened, either to the communicator they were
// opened for or to the queue that accept() reads.
//
// Threading: any thread.
#pragma once

#include <deque>
#include <memory>

#include "base/sync.h"
#include "endpoint/pairing.h"

namespace oh {

// Admits incoming links on behalf of a communicator, which installs itself with set_gate().
class LinkGate {
 public:
  virtual ~LinkGate() = default;
  // Returns OK if the link is accepted. OH_AGAIN: a link to that rank already exists, or one that
  // takes precedence is in progress.
  virtual Status admit(const LinkPurpose& purpose) = 0;
  // Each successful admit() is followed by exactly one of these.
  virtual void linked(const LinkPurpose& purpose, std::shared_ptr<Peer> peer) = 0;
  virtual void abandoned(const LinkPurpose& purpose) = 0;
};

class IncomingLinks {
 public:
  explicit IncomingLinks(Endpoint& endpoint) : endpoint_(endpoint) {}

  void set_gate(std::weak_ptr<LinkGate> gate);
  // Each successful admit() is followed by either deliver() or abandoned().
  Status admit(const LinkPurpose& purpose);
  void deliver(const LinkPurpose& purpose, std::shared_ptr<Peer> peer);
  void abandoned(const LinkPurpose& purpose);

  // Returns the oldest queued peer, or waits for one.
  Result<std::shared_ptr<Peer>> accept(Deadline deadline);
  // Returns whether accept() would return at once; fails if no peer can arrive any more.
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
