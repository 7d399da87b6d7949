// SPDX-License-Identifier: Apache-2.0
//
// Operations: the data plane of one link. Owns the objects that implement each kind of operation
// and their shared state. Makes progress on operations, cancels them, and ends all of them with the
// link.
//
// Threading: any thread; the link's lock is taken inside.
#pragma once

#include <memory>
#include <optional>

#include "lane/stream_link.h"
#include "link/connection.h"
#include "link/link.h"
#include "message/batch/batch_link.h"
#include "message/batch/message_batches.h"
#include "message/frame_router.h"
#include "message/message_calls.h"
#include "message/message_streams.h"
#include "message/receiver.h"
#include "message/sender.h"
#include "one_sided/atomics.h"
#include "one_sided/one_sided.h"
#include "one_sided/one_sided_calls.h"
#include "path/direct/transfers.h"
#include "path/message_selection.h"

namespace oh {

class Operations final : public LinkOwner {
 public:
  // `connection` is null within the process, where `peer_endpoint` identifies the remote endpoint.
  Operations(Peer& peer, Endpoint& endpoint, Connection* connection, const Id& peer_endpoint);
  ~Operations();
  // Creates the paths. Requires the link's channel.
  void open_paths(RmaUse rma_use);
  // Gives the paths the link's facts. `page` is the peer's control page.
  void open(const LinkFacts& facts, std::shared_ptr<ControlPage> page);
  // Sets the stream link, whose lanes are aborted when the link ends.
  void bind(StreamLink* stream) { stream_ = stream; }

  Link& link() { return link_; }
  const Link& link() const { return link_; }
  OneSidedCalls& one_sided() { return calls_; }
  const OneSidedCalls& one_sided() const { return calls_; }
  Atomics& atomics() { return atomics_; }
  MessageCalls& messages() { return messages_; }
  BatchLink& batches() { return batch_link_; }

  // Makes progress if there is work, on `focus` first. Returns true if anything happened. Never
  // blocks on the lock.
  bool poll(Request* focus);
  // Polls several times in a row with the lock held, so that arrivals are handled at once. Returns
  // as soon as anything happened or another thread wants the lock.
  bool spin(Request* focus);
  // As poll(), but waits for the lock, so that no earlier work is missed.
  bool progress(Request* focus);
  // Makes progress on the peer's endpoint if it is in this process. Holds no lock of this link.
  bool progress_there();

  // Tries to end a request; returns true if it has ended. kGiveUp does not wait for chunks in
  // flight, so the request's buffer may be left in doubt.
  enum class Force { kCancel, kDeadline, kGiveUp };
  bool try_end(Request* request, const Status& status, Force force);
  // Whether the copy engine already has the whole copy, so that no thread is needed to finish it.
  bool is_enqueued(const Request& request) OH_NO_THREAD_ANALYSIS;
  // Makes a stream wait, in the driver, for such a request. False: the request is not, or no
  // longer, enqueued.
  Result<bool> enqueue_wait(Request& request, cuda::Stream stream) OH_NO_THREAD_ANALYSIS;
  // Lets the request go on without its handle; recycles it if it has ended. False: the request no
  // longer belongs to this peer.
  bool detach(Request* request);
  // Records that a thread starts or stops waiting for the request.
  void attend(Request* request, bool attended);
  bool buffer_released(const Request* request);

  // Handles a frame received on the control socket.
  Status on_frame_message(ByteView payload);
  // After the connection has ended: whether frames sent earlier may still arrive over UCX. `sent`:
  // number of frames the peer sent; empty if it died without reporting it.
  bool expects_more(std::optional<uint64_t> sent);
  // Ends the link because the peer violated the protocol.
  void accuse(const Status& status);
  // Marks the link as lost and ends every request.
  void lose(const Status& status, bool dead);
  // Closes the link. Data already sent is flushed until the deadline. Waits for a loss that another
  // thread is handling. False: the link was closed before.
  bool close(Deadline until);
  // Whether the link has ended and holds no received data that a receive could still take.
  bool has_nothing_left();
  // See Transfers.
  bool left_to_engines();
  // Releases the resources of the link. Called after close(), once the peer has been told.
  void let_go();

  std::string flight_record();
  Status take_async_error();
  // Describes the state of this side, for a timeout's error text.
  std::string describe(const Request* request);

 private:
  // LinkOwner.
  void serve() override;
  void serve_there() override;
  void posted() override OH_NO_THREAD_ANALYSIS { update_posted(); }
  bool progress_locked(Request* focus) override OH_REQUIRES(link_.lock);

  bool spin_locked(Request* focus);
  bool copy_slice(const Request* focus) OH_EXCLUDES(link_.lock);
  // Whether the request still belongs to this peer: an any-source receive returns to its list when
  // its message is withdrawn, and another peer may then match it.
  bool owns(const Request& request) const OH_REQUIRES(link_.lock) {
    return !request.any_source || link_.any_source->peer_of(&request) == &peer_;
  }
  bool move_devices_on();
  static constexpr size_t kFramesAtOnce = 64;
  static constexpr size_t kPackedFramesAtOnce = 1024;  // one packed buffer of small frames
  size_t drain(Request* focus) OH_REQUIRES(link_.lock);
  void update_busy() OH_REQUIRES(link_.lock);
  // Called after an operation was posted for which no thread may be waiting.
  void update_posted() OH_REQUIRES(link_.lock);
  // The peer's endpoint, for a link within the process.
  std::shared_ptr<Endpoint> endpoint_there() const;
  void let_others_work() OH_NO_THREAD_ANALYSIS;
  void flush(Deadline until) OH_REQUIRES(link_.lock);
  void fail_everything(const Status& why, bool dead) OH_REQUIRES(link_.lock);
  void break_off(const Status& status) OH_REQUIRES(link_.lock);

  Peer& peer_;
  Endpoint& endpoint_;
  const Id peer_endpoint_;
  Link link_;
  MessageSelection selection_;
  Transfers transfers_;
  StagingPipeline pipeline_;
  BounceCopies bounce_copies_;
  Matcher matcher_;
  ShortReceives short_receives_;
  Sender sender_;
  Receiver receiver_;
  MessageCalls messages_;
  MessageStreams streams_;
  OneSided one_sided_;
  OneSidedCalls calls_;
  Atomics atomics_;
  MessageBatches batches_;
  BatchLink batch_link_;
  FrameRouter router_;
  StreamLink* stream_ = nullptr;
  bool ending_ = false;  // a thread is in fail_everything()

  int quiet_looks_ = 0;  // consecutive polls that found nothing; watcher thread only
};

}  // namespace oh
