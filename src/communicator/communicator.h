// SPDX-License-Identifier: Apache-2.0
//
// Communicator: maps ranks to peers that met at one rendezvous. A link is opened on first use by
// the side that needs it first. If both sides open one at the same time, the lower rank's link
// wins.
//
//   NONE ──▶ CONNECTING ──▶ LINKED                      back to NONE when it fails
//     │           └──▶ AWAITED (peer's link wins) ──┐     AWAITED: back to NONE after kPatience
//     └─────────────────────────────────────────────┴──▶ ACCEPTING ──▶ LINKED
//
// A lost link returns to NONE, and either side may open a new one. peer() keeps returning the lost
// peer, whose calls fail, until reconnect() is called here: operations in flight were lost, and
// every caller must notice.
//
// A restarted process joins the rendezvous again for its rank. Rank 0 serves the rendezvous while
// it is in reconnect() for that rank. The process receives the address table and connects to all
// other ranks, which gives them its new address.
//
// Threading: any thread.
#pragma once

#include <condition_variable>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "control/rendezvous.h"
#include "endpoint/endpoint.h"

namespace oh {

struct CommunicatorOptions {
  uint32_t rank = 0;
  uint32_t size = 1;
  std::string rendezvous;  // tcp://host:port
  Bytes unique_id;         // alternative to `rendezvous`
};

class Communicator final : public LinkGate,
                           public ReturnGate,
                           public std::enable_shared_from_this<Communicator> {
 public:
  static Result<std::shared_ptr<Communicator>> create(const Config& config,
                                                      const EndpointOptions& endpoint_options,
                                                      const CommunicatorOptions& options,
                                                      Deadline deadline);
  ~Communicator() override;
  void close();

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return size_; }
  const std::shared_ptr<Endpoint>& endpoint() const { return endpoint_; }

  // Returns the peer of that rank; connects if needed. A lost peer is returned until reconnect().
  Result<std::shared_ptr<Peer>> peer(int64_t rank, Deadline deadline);
  // Waits for a working link to that rank and returns its peer. Both sides must call it. A
  // restarted process need not, but then rank 0 must call it.
  Result<std::shared_ptr<Peer>> reconnect(int64_t rank, Deadline deadline);
  // Returns when all ranks have entered. If a rank is lost, it fails on all ranks.
  Status barrier(Deadline deadline);
  // Number of barriers that this rank has entered.
  uint64_t barriers() const { return barriers_.load(); }

  Status admit(const LinkPurpose& purpose) override;
  void linked(const LinkPurpose& purpose, std::shared_ptr<Peer> peer) override;
  void abandoned(const LinkPurpose& purpose) override;
  Result<Bytes> on_return(const Registration& registration) override;

 private:
  enum class LinkState { kNone, kConnecting, kAwaited, kAccepting, kLinked };
  struct RankLink {
    LinkState state = LinkState::kNone;
    std::shared_ptr<Peer> peer;
    std::vector<std::shared_ptr<Peer>> lost;  // earlier peers, kept until reconnect()
    uint32_t awaited = 0;                     // reconnect() calls in progress
  };

  Communicator() = default;
  Status join(const Config& config, const CommunicatorOptions& options, Deadline deadline);
  Status find_rendezvous(const Config& config, const CommunicatorOptions& options,
                         Deadline deadline);
  void greet_all(Deadline deadline);
  // `sent`: whether this rank's message of the round was sent to `to`.
  Status barrier_round(uint32_t to, uint32_t from, uint64_t tag, Deadline deadline, bool* sent);
  // Empty `text`: this rank has entered. Otherwise `text` is the reason why the barrier failed.
  Status send_in_barrier(uint32_t to, uint64_t tag, std::string_view text, Deadline deadline);
  void send_failure(uint32_t to, uint64_t tag, const std::string& text, Deadline deadline);
  Status check_rank_of_peer(int64_t rank) const;
  Result<std::shared_ptr<Peer>> connect(uint32_t rank, Deadline deadline);
  // Makes one attempt, or waits for that of the peer.
  Result<std::shared_ptr<Peer>> link_to(uint32_t rank, Deadline deadline) OH_REQUIRES(mutex_);
  // Retries until the deadline, after any failure.
  Result<std::shared_ptr<Peer>> keep_linking_to(uint32_t rank, Deadline deadline)
      OH_REQUIRES(mutex_);
  static void note_loss(RankLink& link);
  Status serve_return(Deadline deadline);
  void stop_serving_return();

  uint32_t rank_ = 0;
  uint32_t size_ = 0;
  std::shared_ptr<Endpoint> endpoint_;
  RendezvousJoin rendezvous_;   // parameters of the rendezvous
  bool served_by_url_ = false;  // false: served by the process that created the unique id
  std::atomic<uint64_t> barriers_{0};

  // Held while a server starts or stops, which involves the watcher thread.
  Mutex server_mutex_;
  std::unique_ptr<RendezvousServer> server_ OH_GUARDED_BY(server_mutex_);
  uint32_t serving_ OH_GUARDED_BY(server_mutex_) = 0;  // reconnect() calls that need server_

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<RankLink> links_ OH_GUARDED_BY(mutex_);
  std::vector<Bytes> addresses_ OH_GUARDED_BY(mutex_);
  Id id_ OH_GUARDED_BY(mutex_){};
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  int closing_ = 0;  // copy of closed_ for Deadline::unless(); accessed with __atomic builtins
};

}  // namespace oh
