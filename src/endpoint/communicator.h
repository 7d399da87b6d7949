// SPDX-License-Identifier: Apache-2.0
//
// Communicator: a map from ranks to peers over one rendezvous. Peers connect on first use, from
// whichever side needs it first; when both do, the lower rank's link wins.
//
//   NONE ──▶ CONNECTING (we) ──▶ LINKED               back to NONE when it fails
//     │           └──▶ AWAITED (theirs wins) ──┐          AWAITED: back to NONE after a while
//     └────────────────────────────────────────┴──▶ ACCEPTING (they) ──▶ LINKED
//
// Threading: any thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <vector>

#include "control/rendezvous.h"
#include "endpoint/endpoint.h"

namespace oh {

struct CommunicatorOptions {
  uint32_t rank = 0;
  uint32_t size = 1;
  std::string rendezvous;  // tcp://host:port
  Bytes unique_id;         // instead of it
};

class Communicator final : public LinkGate, public std::enable_shared_from_this<Communicator> {
 public:
  static Result<std::shared_ptr<Communicator>> create(const Config& config,
                                                      const EndpointOptions& endpoint_options,
                                                      const CommunicatorOptions& options,
                                                      Deadline deadline);
  ~Communicator() override;
  void close();

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return static_cast<uint32_t>(addresses_.size()); }
  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }

  // The peer of that rank, connected if it is not yet.
  Result<std::shared_ptr<Peer>> peer(int64_t rank, Deadline deadline);
  // All ranks have entered when it returns.
  Status barrier(Deadline deadline);

  Status admit(const LinkPurpose& purpose) override;
  void linked(const LinkPurpose& purpose, std::shared_ptr<Peer> peer) override;
  void abandoned(const LinkPurpose& purpose) override;

 private:
  enum class LinkState { kNone, kConnecting, kAwaited, kAccepting, kLinked };
  struct Link {
    LinkState state = LinkState::kNone;
    std::shared_ptr<Peer> peer;
  };

  Communicator() = default;
  Status join(const Config& config, const CommunicatorOptions& options, Deadline deadline);
  Result<std::shared_ptr<Peer>> connect(uint32_t rank, Deadline deadline);

  uint32_t rank_ = 0;
  std::shared_ptr<Endpoint> endpoint_;
  std::vector<Bytes> addresses_;
  std::unique_ptr<RendezvousServer> server_;
  std::atomic<uint64_t> barriers_{0};

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<Link> links_ OH_GUARDED_BY(mutex_);
  Id id_ OH_GUARDED_BY(mutex_){};
  bool closed_ OH_GUARDED_BY(mutex_) = false;
};

}  // namespace oh
