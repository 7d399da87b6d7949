// SPDX-License-Identifier: Apache-2.0
//
// Peer: one link to one remote endpoint. Owns the link, its operations and the control connection,
// and ends all of them when the peer is lost.
//
// Threading: any thread.
#pragma once

#include <memory>
#include <optional>

#include "endpoint/operations.h"
#include "lane/stream_link.h"
#include "link/connection.h"
#include "link/liveness.h"
#include "link/memory_exchange.h"
#include "link/totals.h"
#include "path/selection.h"

namespace oh {

// Identity of the peer, from the hello.
struct PeerIdentity {
  Id process{};
  Id endpoint{};
  std::string label;
  int64_t rank = -1;     // in the communicator that opened the link; -1: none
  std::string gpu = {};  // UUID of its endpoint's GPU; empty: none
};

// The parts of a link, as assembled by pairing.h.
struct LinkParts {
  PeerIdentity identity;
  bool same_host = true;             // connected by a Unix socket, or within the process
  std::unique_ptr<Segment> segment;  // null: UCX or the control socket carries the frames
  std::unique_ptr<UcxChannel> ucx;   // null: not used; never set together with `segment`
  bool ucx_allowed = false;          // both sides' configurations allow it
  std::unique_ptr<Mover> mover;      // null: this side cannot access the peer's memory
  bool they_reach_us = false;
  std::string why_no_segment;
  std::string why_no_ucx;
  std::string why_no_mover;
  std::shared_ptr<ControlPage> their_page;  // null without a segment
  std::shared_ptr<Connection> connection;   // null within a process
  Limits mine;
  Limits theirs;
  uint64_t asked_inline = 0;
  std::shared_ptr<cuda::Gpu> gpu;  // of the local endpoint; null: host memory only
  std::shared_ptr<Worker> worker;  // of `gpu`; null: none
  std::shared_ptr<StagingPool> staging;
  uint32_t staging_depth = 0;
  RmaUse rma_use = RmaUse::kOff;
  size_t import_cache = 0;     // blocks of the peer's device memory that stay mapped
  std::string nvml_library;    // path of NVML, from the configuration
  std::string why_no_mapping;  // not empty: the processes do not map each other's device memory
};

class Peer final : public ConnectionOwner,
                   public CountedLink,
                   public std::enable_shared_from_this<Peer> {
 public:
  static std::shared_ptr<Peer> create(const std::shared_ptr<Endpoint>& endpoint, LinkParts parts);
  ~Peer() override;
  // Starts to receive from the control connection.
  Status start();
  // Joins the two ends of a link within the process. Call before start().
  static void introduce(Peer& one, Peer& other);

  const PeerIdentity& identity() const { return identity_; }
  bool within_process() const { return !connection_; }
  LinkFacts facts() const;
  // facts() and the GPU interconnect, whose first query takes milliseconds.
  LinkFacts facts_of_gpus() const;

  Link& link() { return operations_.link(); }
  const Link& link() const { return operations_.link(); }
  Operations& operations() { return operations_; }
  // The link's part of the stream and kernel APIs.
  StreamLink& stream() { return *stream_; }
  MemoryExchange& memory() { return memory_; }
  Liveness& liveness() { return liveness_; }

  // OK while the link is open, otherwise the reason why it is not.
  Status usable() const { return link().usable(); }
  // How long close() flushes data that was already sent.
  static constexpr int64_t kCloseTime = kSecond;
  void close() { close(Deadline::after(kCloseTime)); }
  void close(Deadline until);
  // A local memory block is about to be freed: revokes it from the peer.
  void retire_block(uint32_t number);

  Stats stats();
  Status take_async_error();
  // Describes the state of both sides, for a timeout's error text.
  std::string describe(const Request* request);
  // If one side uses a message call and the other a batch call for the same tag, these never match:
  // returns a text that says which, and the fix. Otherwise returns an empty string.
  std::string mismatch(const Wait& ours);

  // CountedLink.
  void add_to(Stats* stats) const override;
  bool is_open() const override { return link().is_open(); }

  // ConnectionOwner.
  Status on_message(uint8_t type, ByteView payload, std::vector<UniqueFd> fds) override;
  void on_idle() override;
  bool expects_more() override { return operations_.expects_more(frames_before_bye_); }
  void on_lost(const Status& status) override;

 private:
  Peer(const std::shared_ptr<Endpoint>& endpoint, LinkParts parts);
  void open_channel(LinkParts& parts);
  void open_device(const LinkParts& parts);
  void open_stream(const LinkParts& parts);
  void count_fallbacks(bool same_host) const;
  bool has_come(WaitKind kind, uint64_t tag);
  Status on_control(Control type, ByteView payload, std::vector<UniqueFd> fds);

  Endpoint& endpoint_;
  // For the watcher thread, which may still call while the endpoint is being destroyed.
  std::weak_ptr<Endpoint> living_endpoint_;
  const PeerIdentity identity_;
  const std::string why_no_segment_;
  const std::string why_no_ucx_;
  const std::string why_no_mover_;
  const std::string nvml_library_;
  std::string our_gpu_;  // UUID; empty: host memory only
  CopySide copy_side_ = CopySide::kSource;
  std::string why_no_peer_access_;
  const std::shared_ptr<Connection> connection_;
  Operations operations_;
  MemoryExchange memory_;
  Liveness liveness_;
  std::unique_ptr<StreamLink> stream_;
  std::weak_ptr<Peer> partner_;  // the other end of a link within the process
  Mutex close_mutex_;
  // Number of frames the peer sent over UCX, from its Bye. Used only by the watcher thread.
  std::optional<uint64_t> frames_before_bye_;
};

}  // namespace oh
