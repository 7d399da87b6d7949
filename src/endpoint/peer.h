// SPDX-License-Identifier: Apache-2.0
//
// Peer: one connection to one remote endpoint. Owns the pair, its parts and the control connection;
// drives progress, and ends everything when the other side is lost.
//
//   OPEN ──▶ LOST (the other side died, said goodbye, or broke the protocol)
//     └────▶ CLOSED (by us)
//
// Threading: any thread.
#pragma once

#include <memory>
#include <optional>
#include <set>

#include "lane/stream_link.h"
#include "link/connection.h"
#include "link/pair.h"
#include "message/batch/message_batches.h"
#include "message/message_streams.h"
#include "message/receiver.h"
#include "message/sender.h"
#include "one_sided/one_sided.h"
#include "path/direct/transfers.h"
#include "path/rma/rma_path.h"
#include "path/selection.h"

namespace oh {

// What a thread of a side waits for, as the other side's error texts tell it.
enum class WaitKind : uint32_t {
  kNothing = 0,
  kSend,
  kRecv,
  kOneSided,
  kSignal,
  kConnect,
  kSendBatch,
  kRecvBatch,
  kLast = kRecvBatch,
};
const char* wait_kind_text(WaitKind kind);

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
  std::shared_ptr<Board> their_board;      // null without a segment
  std::shared_ptr<Connection> connection;  // null within a process
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

// Exported device memory that is on its way: its descriptors come a few at a time.
struct ArrivingExport {
  uint32_t number = 0;
  ExportRecord record;
  size_t expected = 0;  // descriptors
  std::vector<UniqueFd> fds;
};

// Where an offer was to go, while the other side may still write there.
struct DoubtfulOffer {
  Bytes bytes;
  std::vector<Doubt> doubts;
};

// What a peer asks of its endpoint.
class PeerOwner : public OneSidedHost, public StreamHost {
 public:
  virtual void recycle(Request* request) = 0;
  virtual void announce() = 0;
  virtual void look_again() = 0;
  // Schedules UCX progress on the watcher thread, unless another thread has made it by then.
  virtual void look_at_ucx_soon() = 0;
  virtual AnySource& any_source() = 0;
  virtual Doorbell& doorbell() = 0;
  virtual void count_polled(int change) = 0;
  // A peer needs our progress for what it does to our regions.
  virtual void serve() = 0;
  // The same of another endpoint of this process.
  virtual void ask_to_serve(const Id& endpoint) = 0;
  virtual RegionTable& regions() = 0;
};

class Peer final : public PairHost,
                   public ConnectionOwner,
                   public std::enable_shared_from_this<Peer> {
 public:
  Peer(const std::shared_ptr<PeerOwner>& owner, LinkParts parts);
  ~Peer() override;
  // Begins to listen to the control connection.
  Status start();
  // The two ends of a link within the process, before they start.
  static void introduce(Peer& one, Peer& other) {
    for (Peer* peer : {&one, &other}) peer->bind_stream();
    StreamLink::introduce(*one.stream_, *other.stream_);
  }
  // Of the stream and kernel domains.
  StreamLink& stream() { return *stream_; }

  const PeerIdentity& identity() const { return identity_; }
  Pair& pair() { return pair_; }
  const Pair& pair() const { return pair_; }
  LinkFacts facts() const;
  // The same, and how the GPUs are joined, which takes milliseconds when it is asked first.
  LinkFacts facts_of_gpus() const;
  bool within_process() const { return !connection_; }

  // Posts an operation; afterwards the request ends through the engine. OH_AGAIN: too many sends
  // are pending. Any other failure: nothing was posted.
  Status post_send(Request* request);
  // The short way for small messages, without a request: false when it is not open now. recv_now()
  // spins for a short while for the message.
  bool send_now(const uint8_t* data, size_t size, uint64_t tag);
  // The same with a request, which has ended then.
  bool send_now(Request* request, const uint8_t* data, size_t size, uint64_t tag) {
    if (!send_now(data, size, tag)) return false;
    pair_.finish_posted(*request, tag, size);
    return true;
  }
  bool recv_now(uint8_t* data, size_t capacity, uint64_t tag, Receiver::Received* received);
  Status post_recv(Request* request);
  // Puts and gets: as OneSided has them.
  Status move(Request* request, const Move& move) { return one_sided_.move(request, move); }
  Result<std::unique_ptr<BatchPlan>> plan(const Move& move) { return one_sided_.plan(move); }
  Status post_notification(Request* request, ByteView bytes);
  // Handles of the peer's region that our user has.
  void attach_key(const RemoteTarget& target);
  void detach_key(const RemoteTarget& target);
  RemoteKeys& keys() { return rma_->keys(); }  // over UCX
  // Batches as messages. A receive whose `memory` and offer are made: OH_AGAIN as for post_send().
  Status post_batch(Request* request, std::unique_ptr<BatchReceive> receive);
  // Begins to fetch the next offer of the tag, into `bytes`; false when there is none.
  bool fetch_offer(Request* request, uint64_t tag, Bytes* bytes);
  // Keeps what a fetch that was given up has left, until the other side has left it, too.
  void keep(DoubtfulOffer offer);
  // Whether take_region() can be asked; else an empty put takes the region of an offer.
  bool sees_board() const { return their_board_ != nullptr; }
  // False: its receive was given up.
  bool take_region(RemoteTarget& target);
  // False: its receive was given up since. Else it has the batch, whatever becomes of us.
  bool finish_region(const RemoteTarget& target, uint64_t size, oh_path path);
  // Tells the receive how its batch has ended, of `size` bytes.
  void end_batch(uint64_t op, uint64_t size, oh_path path, oh_status status);
  // Breaks the link off: the peer does not keep to the protocol.
  void accuse(const Status& status);
  Status signal(uint32_t slot, uint64_t count);
  bool take_signals(uint32_t slot, uint64_t count);
  bool has_signals(uint32_t slot, uint64_t count);
  // The message that a receive with this tag would get at once.
  std::optional<Receiver::Announced> probe(uint64_t tag);
  void notification_collected(size_t bytes);
  // Asks the peer for one of its shared blocks; imported() has it once it is mapped, or says that
  // it will not come.
  Status ask_for_block(uint32_t number);
  std::shared_ptr<ImportedBlock> imported(uint32_t number, bool* failed);

  // Makes progress if there is work; true when something happened. `focus` comes first. Never
  // blocks on the lock.
  bool poll(Request* focus);
  // Polls some times in a row with the lock held, so that arrivals are handled at once; returns as
  // soon as something happened or another thread wants the lock.
  bool spin(Request* focus);
  // Makes progress like poll(), but waits for the lock: afterwards no earlier work is left unseen.
  bool progress(Request* focus);
  void offer_early();
  // Drops messages that have come with a tag of the library's own.
  void discard(uint64_t tag);

  // Ends a request that has not ended. With `give_up`, chunks under way are not waited for any
  // more: the request is in doubt then. True when it has ended.
  enum class Force { kCancel, kDeadline, kGiveUp };
  bool try_end(Request* request, const Status& status, Force force);
  // False: it is not this peer's any more.
  bool detach(Request* request);
  // A thread waits for the request from now on, or no more.
  void attend(Request* request, bool attended);
  bool buffer_released(const Request* request);

  // What was sent has so long to leave.
  static constexpr int64_t kCloseTime = kSecond;
  void close() { close(Deadline::after(kCloseTime)); }
  void close(Deadline until);
  // The region is retired: nothing new begins in it. Then waits until it is no longer accessed.
  void retire_region(const RegionRecord& region);
  Status wait_until_retired(const RegionRecord& region, Deadline deadline);
  // Waits until no one-sided operation of the peer that began before is inside our memory. On a
  // device, a hang-up does not say so, only the end of its process.
  bool wait_until_outside(Deadline deadline, bool device = false);
  void retire_block(uint32_t number);

  Stats stats();
  // The last operations that have ended, a line each.
  std::string flight_record();
  Status take_async_error();
  // Nanoseconds since the oldest probe that was not answered; asks if none is under way.
  int64_t unresponsive_for();
  void set_waiting(WaitKind kind, uint64_t tag);
  // Where both sides stand, for the text of a timeout.
  std::string describe(const Request* request);
  // A wait here that has met its deadline.
  struct Wait {
    WaitKind kind = WaitKind::kNothing;
    uint64_t tag = 0;
    const Request* request = nullptr;
  };
  // Where the two sides call what never meets, a message and a batch: which, and what to do. Else
  // empty.
  std::string mismatch(const Wait& wait);

  // PairHost.
  void recycle(Request* request) override {
    if (request->batch) return batches_.offer_ended(*request->batch);
    if (request->path_of_piece) return request->path_of_piece->piece_ended(request);
    owner_.recycle(request);
  }
  void announce() override { owner_.announce(); }
  uint32_t block_of(const void* data, uint64_t size) override;
  void want_block(uint32_t number) override;
  void publish(const std::shared_ptr<const GpuExport>& exported) override;
  void count_polled(int change) override { owner_.count_polled(change); }
  void serve() override { owner_.serve(); }
  Status ask_to_serve() override;
  Status usable() const override;
  void posted() override OH_NO_THREAD_ANALYSIS { update_posted(); }
  void look_again() override { owner_.look_again(); }
  Status still_there() override;
  bool process_is_dead() override { return connection_ && connection_->process_is_dead(); }
  bool is_outside(bool device) override {
    return !pair_.segment || wait_until_outside(Deadline::after(0), device);
  }
  // Null in the destructor, when no request can be left.
  std::shared_ptr<Peer> keep_alive() override { return weak_from_this().lock(); }

  // ConnectionOwner.
  Status on_message(uint8_t type, ByteView payload, std::vector<UniqueFd> fds) override;
  void on_idle() override;
  bool expects_more() override;
  void on_lost(const Status& status) override;

 private:
  enum class State : int { kOpen, kLost, kClosed };

  void open_device(const LinkParts& parts);
  void open_stream(const LinkParts& parts);
  void bind_stream() { stream_->bind(weak_from_this(), living_owner_); }
  bool progress_locked(Request* focus) OH_REQUIRES(pair_.lock);
  // Whether the request is still this peer's: an any-source receive goes back to its list when its
  // message is withdrawn, and may then be another peer's.
  bool owns(const Request& request) const OH_REQUIRES(pair_.lock) {
    return !request.any_source || pair_.any_source->peer_of(&request) == this;
  }
  bool move_devices_on();
  bool map_for_keys() OH_NO_THREAD_ANALYSIS;
  static constexpr size_t kFramesAtOnce = 64;
  static constexpr size_t kPackedFramesAtOnce = 1024;  // a buffer of small ones
  size_t drain(Request* focus) OH_REQUIRES(pair_.lock);
  Status handle(const Frame& frame) OH_REQUIRES(pair_.lock);
  void break_off(const Status& status) OH_REQUIRES(pair_.lock);
  void update_busy() OH_REQUIRES(pair_.lock);
  // After something of ours was posted, for which no thread may wait.
  void update_posted() OH_REQUIRES(pair_.lock);
  void let_others_work() OH_NO_THREAD_ANALYSIS;
  Status check_open() OH_REQUIRES(pair_.lock);
  Wait their_wait() const;
  bool has_come(WaitKind kind, uint64_t tag);
  void lose(const Status& status, bool dead);
  void say_last(Deadline until) OH_REQUIRES(pair_.lock);
  void fail_everything(const Status& why, bool dead) OH_REQUIRES(pair_.lock);
  std::string remedy() const;
  Status on_control(Control type, ByteView payload, std::vector<UniqueFd> fds);
  Status on_block(ByteView payload, std::vector<UniqueFd> fds);
  Status on_export(ByteView payload, std::vector<UniqueFd> fds, bool first);
  Status import(uint32_t number, std::shared_ptr<ImportedBlock> block);
  Status send_block(uint32_t number);
  Status send_export(const GpuExport& exported);
  Status check_memory(const Request& request) const;
  Status no_way_for_devices() const;
  Status ask_producer(Request& request) OH_NO_THREAD_ANALYSIS;
  bool wait_until_left(Deadline deadline);
  bool released(const std::vector<Doubt>& doubts) OH_REQUIRES(pair_.lock);
  void drop_offers() OH_REQUIRES(pair_.lock);
  Status on_pong(ByteView payload);

  PeerOwner& owner_;
  // The watcher's thread may still call while the owner is being destroyed.
  std::weak_ptr<PeerOwner> living_owner_;
  SharedHeap& heap_;
  PeerIdentity identity_;
  std::string why_no_segment_;
  std::string why_no_ucx_;
  std::string why_no_mover_;
  std::string our_gpu_;  // UUID; empty: host memory only
  std::string nvml_library_;
  Status why_no_device_;
  std::string why_no_peer_access_;
  std::shared_ptr<Board> their_board_;
  std::shared_ptr<Connection> connection_;
  Pair pair_;
  Transfers transfers_;
  Crossings crossings_;
  Sender sender_;
  Receiver receiver_;
  MessageStreams streams_;
  OneSided one_sided_;
  RmaPath* rma_ = nullptr;  // of one_sided_, over UCX
  MessageBatches batches_;
  std::unique_ptr<StreamLink> stream_;

  std::atomic<State> state_{State::kOpen};
  Status why_;                              // guarded by pair_.lock
  Status async_error_;                      // guarded by pair_.lock
  bool asked_to_serve_ = false;             // guarded by pair_.lock
  std::set<uint32_t> exported_;             // blocks the peer knows; guarded by pair_.lock
  std::vector<DoubtfulOffer> kept_offers_;  // guarded by pair_.lock
  // An export that arrives in parts; only on the watcher's thread.
  std::unique_ptr<ArrivingExport> arriving_;
  // What it had sent over UCX when it said goodbye; looks since anything came. The same.
  std::optional<uint64_t> frames_before_bye_;
  int quiet_looks_ = 0;

  // Probes. Times are monotonic, 0 for none.
  std::atomic<int64_t> probe_sent_{0};
  std::atomic<uint64_t> probe_serial_{0};
  std::atomic<uint64_t> probe_answered_{0};
  std::atomic<uint32_t> pong_waiting_{0};
  std::atomic<uint64_t> pong_tag_{0};
  std::atomic<uint32_t> my_waiting_{0};
  std::atomic<uint64_t> my_waiting_tag_{0};
};

}  // namespace oh
