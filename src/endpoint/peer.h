// SPDX-License-Identifier: Apache-2.0
//
// Peer: one connection to one remote endpoint. Owns the link, its operations and the control
// connection, and ends everything when the other side is lost.
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

// Who the other side is, and what was agreed with it at the hello.
struct PeerIdentity {
  Id process{};
  Id endpoint{};
  std::string label;
  int64_t rank = -1;     // in the communicator that made the link
  std::string gpu = {};  // UUID of the one its endpoint is on; empty: none
};

// Everything a link consists of, as pairing.h sets it up.
struct LinkParts {
  PeerIdentity identity;
  bool same_host = true;             // as far as it is known: by a Unix socket, or no socket at all
  std::unique_ptr<Segment> segment;  // null: frames travel on the socket
  std::unique_ptr<UcxChannel> ucx;   // instead of the socket
  bool ucx_allowed = false;          // by the configuration of both sides
  std::unique_ptr<Mover> mover;      // null: we do not reach their memory
  bool they_reach_us = false;
  std::string why_no_segment;
  std::string why_no_ucx;
  std::string why_no_mover;
  std::shared_ptr<ControlPage> their_page;  // null without a segment
  std::shared_ptr<Connection> connection;   // null within a process
  Limits mine;
  Limits theirs;
  uint64_t asked_inline = 0;
  std::shared_ptr<cuda::Gpu> gpu;  // of our endpoint; null: host memory only
  std::shared_ptr<Worker> worker;  // of that; null: none
  std::shared_ptr<StagingPool> staging;
  uint32_t staging_depth = 0;
  RmaUse rma_use = RmaUse::kOff;
  size_t import_cache = 0;     // blocks of device memory that stay mapped
  std::string nvml_library;    // of the configuration
  std::string why_no_mapping;  // not empty: device memory is not mapped between the processes
};

class Peer final : public ConnectionOwner,
                   public CountedLink,
                   public std::enable_shared_from_this<Peer> {
 public:
  static std::shared_ptr<Peer> create(const std::shared_ptr<Endpoint>& endpoint, LinkParts parts);
  ~Peer() override;
  // Begins to listen to the control connection.
  Status start();
  // The two ends of a link within the process, before they start.
  static void introduce(Peer& one, Peer& other);

  const PeerIdentity& identity() const { return identity_; }
  bool within_process() const { return !connection_; }
  LinkFacts facts() const;
  // The same, and how the GPUs are joined, which takes milliseconds when it is asked first.
  LinkFacts facts_of_gpus() const;

  Link& link() { return operations_.link(); }
  const Link& link() const { return operations_.link(); }
  Operations& operations() { return operations_; }
  // Of the stream and kernel domains.
  StreamLink& stream() { return *stream_; }
  MemoryExchange& memory() { return memory_; }
  Liveness& liveness() { return liveness_; }

  // Why the link is not open any more.
  Status usable() const { return link().usable(); }
  // What was sent has so long to leave.
  static constexpr int64_t kCloseTime = kSecond;
  void close() { close(Deadline::after(kCloseTime)); }
  void close(Deadline until);
  // A block of ours is about to go.
  void retire_block(uint32_t number);

  Stats stats();
  Status take_async_error();
  // Where both sides stand, for the text of a timeout.
  std::string describe(const Request* request);
  // Where the two sides call what never meets, a message and a batch: which, and what to do. Else
  // empty.
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
  // The watcher's thread may still call while the endpoint is being destroyed.
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
  // What it had sent over UCX when it said goodbye. Only on the watcher's thread.
  std::optional<uint64_t> frames_before_bye_;
};

}  // namespace oh
