// SPDX-License-Identifier: Apache-2.0
//
// Connection: the control socket of a peer after the hello, and the watch for its death. Carries
// control messages, and all frames where there is no segment.
//
// Threading: any thread may send; messages are received on the watcher's thread.
#pragma once

#include <memory>
#include <vector>

#include "base/sync.h"
#include "control/node.h"
#include "platform/os/message_socket.h"
#include "transport/socket/socket_channel.h"

namespace oh {

// Beside kFrameMessage (64).
enum class Control : uint8_t {
  kPing = 65,          // serial 8
  kPong = 66,          // serial 8, waiting 4, waiting tag 8
  kBye = 67,           // text; over UCX: frames sent 8
  kBlock = 68,         // number 4, base 8, size 8; one descriptor
  kBlockRetired = 69,  // number 4
  kBlockWanted = 70,   // number 4
  kExport = 71,        // number 4, descriptors in all 4, record; none with an empty one
  kExportMore = 72,    // number 4; descriptors only
  kServe = 73,         // operations on your regions need your progress
  kLanes = 74,         // number of the slab's export 4, its bytes 8, layout 4
  kLaneReady = 75,     // lane 4, epoch 1: that it begins
  kStreamWay = 76,     // StreamWay 1, text: how we can go, and why not otherwise
};

class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // A control message or a frame. An error loses the peer.
  virtual Status on_message(uint8_t type, ByteView payload, std::vector<UniqueFd> fds) = 0;
  // All received messages have been handled; or the socket takes bytes again.
  virtual void on_idle() = 0;
  // The socket has ended, but what was sent beside it may still be in flight: makes progress on
  // that. False: the end may be reported.
  virtual bool expects_more() { return false; }
  // The socket is gone or the process is dead; once.
  virtual void on_lost(const Status& status) = 0;
};

class Connection final : public Watcher::Handler,
                         public MessageSink,
                         public std::enable_shared_from_this<Connection> {
 public:
  // `pid`: the process at the other end, 0 where it is not visible.
  Connection(std::shared_ptr<Node> node, MessageSocket socket, int pid);
  ~Connection() override;

  // From now on the owner gets messages; those that have arrived already come at once.
  Status start(std::weak_ptr<ConnectionOwner> owner);
  // Has the watcher thread look, without an event.
  void look_again();
  // Sends Bye and what is queued (by the deadline), and releases everything. Over TCP it waits
  // until the other side has read all of it and hangs up. Idempotent.
  void close(ByteView bye, Deadline deadline);

  size_t backlog() override;
  // On a connection that has ended nothing is sent, and that is no failure: the owner is told of
  // the end after the last message.
  Status send_message(uint8_t type, ByteView head, ByteView tail) override;
  Status send_control(Control type, ByteView payload, std::vector<int> fds = {});

  // Ends the connection without a word and without waiting.
  void break_off();
  // Hung up, or seen to die: the peer does not touch our memory any more.
  bool peer_is_dead() const { return dead_.load(); }
  // Its process has ended; a goodbye or a hang-up is not enough.
  bool process_is_dead() const;
  // Asks the socket itself, which hangs up when the process dies or runs another program.
  bool is_open() const;

  void on_ready(uint32_t events) override;

 private:
  class DeathWatch;
  void watch_death(int pid);
  void lose(const Status& status);
  void drain(const Status& status, Deadline deadline);
  void on_death();
  Status receive_some(ConnectionOwner& owner, const Status& end);
  void flush() OH_REQUIRES(mutex_);
  // Nothing more can be sent: the connection is lost once everything that has come was read. The
  // first reason counts.
  void end_with(const Status& why) OH_REQUIRES(mutex_);
  Status queue(uint8_t type, ByteView head, ByteView tail, std::vector<int> fds);

  std::shared_ptr<Node> node_;
  std::weak_ptr<ConnectionOwner> owner_;
  int pid_;
  const bool by_network_;
  UniqueFd pidfd_;

  // Guards the sending half, until `closed_`; the receiving half is the watcher's.
  Mutex mutex_;
  MessageSocket socket_;
  bool wants_writable_ OH_GUARDED_BY(mutex_) = false;
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  Status why_ending_ OH_GUARDED_BY(mutex_);
  std::atomic<bool> lost_{false};
  std::atomic<bool> dead_{false};
};

}  // namespace oh
