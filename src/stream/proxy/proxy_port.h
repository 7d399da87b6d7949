// SPDX-License-Identifier: Apache-2.0
//
// ProxyPort: what a proxy needs from its link: posting operations of the host domain. PeerPort
// implements it for a peer; tests have their own.
//
// Threading: the proxy's lock is held.
#pragma once

#include <optional>
#include <string>

#include "base/status.h"
#include "link/request.h"
#include "one_sided/atomics.h"
#include "path/path.h"

namespace oh {

class ProxyPort {
 public:
  virtual ~ProxyPort() = default;
  // The peer's name, for error texts.
  virtual const std::string& name() const = 0;
  // Why the link is no longer open; ok: it is open.
  virtual Status usable() = 0;
  // Wakes threads that wait for the link.
  virtual void wake() = 0;

  // Posts a send or a receive. OH_AGAIN: there is no room now.
  virtual Status post(Request& request, bool on_device) = 0;
  // Posts a put or get, according to the request's kind.
  virtual Status move(Request& request, const RemoteTarget& target, const Block& block) = 0;
  // See Atomics.
  virtual Result<uint32_t> begin_atomic(const RemoteTarget& target, uint64_t offset,
                                        const AtomicOp& op) = 0;
  virtual std::optional<Result<uint64_t>> take_atomic(uint32_t name) = 0;
  virtual void abandon_atomic(uint32_t name) = 0;
  // Ends the request with status `why`, unless it has ended. True: it has ended now.
  virtual bool try_end(Request& request, const Status& why) = 0;
  // Whether the buffer of an ended request is no longer accessed.
  virtual bool released(const Request& request) = 0;
  // Drops messages that have arrived with this tag.
  virtual void discard(uint64_t tag) = 0;
  // Ends the link: the peer has violated the protocol.
  virtual void accuse(const Status& status) = 0;
};

}  // namespace oh
