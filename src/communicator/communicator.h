// SPDX-License-Identifier: Apache-2.0
//
// Communicator: a map from ranks to peers over one rendezvous. Peers connect on first use, from
// whichever side needs it first; when both do, the lower rank's link wins.
//
//   NONE ──▶ CONNECTING (we) ──▶ LINKED               back to NONE when it fails
//     │           └──▶ AWAITED (theirs wins) ──┐          AWAITED: back to NONE after a while
//     └────────────────────────────────────────┴──▶ ACCEPTING (they) ──▶ LINKED
//
// A link that was lost goes back to NONE, and may be made anew by either side. But its rank keeps
// the lost peer, whose calls fail, until reconnect() is called here: what was under way is lost,
// and no caller may go on without learning of it.
//
// A rank whose process ended joins the rendezvous again, which rank 0 serves while it is in
// reconnect() for that rank. It gets the table, connects to all others, and so tells them where it
// is now.
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
  Bytes unique_id;         // instead of it
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

  // The peer of that rank, connected if it is not yet. Once lost it stays lost until reconnect().
  Result<std::shared_ptr<Peer>> peer(int64_t rank, Deadline deadline);
  // The peer of that rank, once there is a link again that works; both sides call it. One that was
  // restarted need not, but rank 0 has to call it then.
  Result<std::shared_ptr<Peer>> reconnect(int64_t rank, Deadline deadline);
  // All ranks have entered when it returns. The loss of one is an error of all.
  Status barrier(Deadline deadline);
  // Those entered so far.
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
    std::vector<std::shared_ptr<Peer>> lost;  // those before, until reconnect()
    uint32_t awaited = 0;                     // calls of reconnect()
  };

  Communicator() = default;
  Status join(const Config& config, const CommunicatorOptions& options, Deadline deadline);
  Status find_rendezvous(const Config& config, const CommunicatorOptions& options,
                         Deadline deadline);
  void greet_all(Deadline deadline);
  // `sent`: whether `to` has this rank's message of the round.
  Status barrier_round(uint32_t to, uint32_t from, uint64_t tag, Deadline deadline, bool* sent);
  // Without `text` this rank has entered; with it, why the barrier failed.
  Status send_in_barrier(uint32_t to, uint64_t tag, std::string_view text, Deadline deadline);
  void send_failure(uint32_t to, uint64_t tag, const std::string& text, Deadline deadline);
  Status check_rank_of_peer(int64_t rank) const;
  Result<std::shared_ptr<Peer>> connect(uint32_t rank, Deadline deadline);
  // One attempt, by us or by the other side.
  Result<std::shared_ptr<Peer>> link_to(uint32_t rank, Deadline deadline) OH_REQUIRES(mutex_);
  // Until the deadline, whatever fails.
  Result<std::shared_ptr<Peer>> keep_linking_to(uint32_t rank, Deadline deadline)
      OH_REQUIRES(mutex_);
  static void note_loss(RankLink& link);
  Status serve_return(Deadline deadline);
  void stop_serving_return();

  uint32_t rank_ = 0;
  uint32_t size_ = 0;
  std::shared_ptr<Endpoint> endpoint_;
  RendezvousJoin rendezvous_;   // where all met
  bool served_by_url_ = false;  // not by the process that made a unique id
  std::atomic<uint64_t> barriers_{0};

  // Held while a server starts or stops, which the watcher's thread has a part in.
  Mutex server_mutex_;
  std::unique_ptr<RendezvousServer> server_ OH_GUARDED_BY(server_mutex_);
  uint32_t serving_ OH_GUARDED_BY(server_mutex_) = 0;  // calls of reconnect() that need it

  Mutex mutex_;
  std::condition_variable_any changed_;
  std::vector<RankLink> links_ OH_GUARDED_BY(mutex_);
  std::vector<Bytes> addresses_ OH_GUARDED_BY(mutex_);
  Id id_ OH_GUARDED_BY(mutex_){};
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  int closing_ = 0;  // the same, for Deadline::unless(); accessed atomically
};

}  // namespace oh
