// SPDX-License-Identifier: Apache-2.0
//
// Operations: what moves bytes over one link: the calls that post operations, a class for each
// kind, and what they share. Makes progress on operations, cancels them, and ends all of them when
// the link is over.
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
  // Within the process there is no connection; `peer_endpoint` is the other side then.
  Operations(Peer& peer, Endpoint& endpoint, Connection* connection, const Id& peer_endpoint);
  ~Operations();
  // Once the link has its channel: makes the paths.
  void open_paths(RmaUse rma_use);
  // And what they can do then; `page` is the other side's.
  void open(const LinkFacts& facts, std::shared_ptr<ControlPage> page);
  // Its lanes end with the link.
  void bind(StreamLink* stream) { stream_ = stream; }

  Link& link() { return link_; }
  const Link& link() const { return link_; }
  OneSidedCalls& one_sided() { return calls_; }
  const OneSidedCalls& one_sided() const { return calls_; }
  Atomics& atomics() { return atomics_; }
  MessageCalls& messages() { return messages_; }
  BatchLink& batches() { return batch_link_; }

  // Makes progress if there is work; true when something happened. `focus` comes first. Never
  // blocks on the lock.
  bool poll(Request* focus);
  // Polls some times in a row with the lock held, so that arrivals are handled at once; returns as
  // soon as something happened or another thread wants the lock.
  bool spin(Request* focus);
  // Makes progress like poll(), but waits for the lock: afterwards no earlier work is left unseen.
  bool progress(Request* focus);
  // Makes progress on the peer's endpoint, if it is of this process. Without any lock.
  bool progress_there();

  // Ends a request that has not ended. With `give_up`, chunks under way are not waited for any
  // more: the request is in doubt then. True when it has ended.
  enum class Force { kCancel, kDeadline, kGiveUp };
  bool try_end(Request* request, const Status& status, Force force);
  // Whether an engine has the copy, so that no thread is needed for it any more.
  bool is_enqueued(const Request& request) OH_NO_THREAD_ANALYSIS;
  // Lets a stream wait for such a request, by the driver. False: it is not one (any more).
  Result<bool> enqueue_wait(Request& request, cuda::Stream stream) OH_NO_THREAD_ANALYSIS;
  // False: it is not this peer's any more.
  bool detach(Request* request);
  // A thread waits for the request from now on, or no more.
  void attend(Request* request, bool attended);
  bool buffer_released(const Request* request);

  // A frame on the control socket.
  Status on_frame_message(ByteView payload);
  // The connection has ended: whether something that was sent before may still come over UCX.
  // `sent`: frames that the other side had sent; not known when it died.
  bool expects_more(std::optional<uint64_t> sent);
  // The other side does not keep to the protocol: ends the link.
  void accuse(const Status& status);
  // The link is over, and every request with it.
  void lose(const Status& status, bool dead);
  // Closes it: what was sent has until then to leave. A loss that another thread is carrying out
  // comes to its end first. False: it was closed before.
  bool close(Deadline until);
  // Whether it is over and nothing has come over it that a receive may still take.
  bool has_nothing_left();
  // After close(), when the other side has heard of it: lets go of what the link held.
  void let_go();

  std::string flight_record();
  Status take_async_error();
  // Where this side stands, for the text of a timeout.
  std::string describe(const Request* request);

 private:
  // LinkOwner.
  void serve() override;
  void serve_there() override;
  void posted() override OH_NO_THREAD_ANALYSIS { update_posted(); }
  bool progress_locked(Request* focus) override OH_REQUIRES(link_.lock);

  bool spin_locked(Request* focus);
  bool copy_slice(const Request* focus) OH_EXCLUDES(link_.lock);
  // Whether the request is still this peer's: an any-source receive goes back to its list when its
  // message is withdrawn, and may then be another peer's.
  bool owns(const Request& request) const OH_REQUIRES(link_.lock) {
    return !request.any_source || link_.any_source->peer_of(&request) == &peer_;
  }
  bool move_devices_on();
  static constexpr size_t kFramesAtOnce = 64;
  static constexpr size_t kPackedFramesAtOnce = 1024;  // a buffer of small ones
  size_t drain(Request* focus) OH_REQUIRES(link_.lock);
  void update_busy() OH_REQUIRES(link_.lock);
  // After something of ours was posted, for which no thread may wait.
  void update_posted() OH_REQUIRES(link_.lock);
  // Of a link within the process.
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

  int quiet_looks_ = 0;  // since anything came; of the watcher's thread
};

}  // namespace oh
