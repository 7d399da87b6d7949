// SPDX-License-Identifier: Apache-2.0
//
// Connection: the control socket of a peer after the hello, and the watch for the peer's death.
// Carries control messages, and all frames where there is neither a segment nor UCX.
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

// Message types; kFrameMessage is 64.
enum class Control : uint8_t {
  kPing = 65,          // serial 8
  kPong = 66,          // serial 8, waiting 4, waiting tag 8
  kBye = 67,           // text; over UCX: frames sent 8
  kBlock = 68,         // number 4, base 8, size 8; one descriptor
  kBlockRetired = 69,  // number 4
  kBlockWanted = 70,   // number 4
  kExport = 71,        // number 4, descriptors in all 4, record; none with an empty one
  kExportMore = 72,    // number 4; descriptors only
  kServe = 73,         // run the progress thread: operations on your regions need it
  kLanes = 74,         // number of the slab's export 4, its bytes 8, layout 4, small 8
  kLaneReady = 75,     // lane 4, epoch that begins 1
  kStreamWay = 76,     // StreamWay 1, text: how the sender can carry streams, and why not better
  kBlockReached = 77,  // number 4: kernels of the sender put messages into this block
};

class ConnectionOwner {
 public:
  virtual ~ConnectionOwner() = default;
  // Handles a control message or a frame. An error ends the connection.
  virtual Status on_message(uint8_t type, ByteView payload, std::vector<UniqueFd> fds) = 0;
  // Called after each turn in which messages were handled or the socket was flushed.
  virtual void on_idle() = 0;
  // The socket has ended, but data sent over UCX may still be in flight: makes progress on it.
  // False: the end may be reported.
  virtual bool expects_more() { return false; }
  // The socket has ended or the process is dead. Called once.
  virtual void on_lost(const Status& status) = 0;
};

class Connection final : public Watcher::Handler,
                         public MessageSink,
                         public std::enable_shared_from_this<Connection> {
 public:
  // `pid`: the process at the other end, 0 where it is not visible.
  Connection(std::shared_ptr<Node> node, MessageSocket socket, int pid);
  ~Connection() override;

  // Starts to deliver messages to the owner; those that have already arrived follow at once.
  Status start(std::weak_ptr<ConnectionOwner> owner);
  // Makes the watcher thread read the socket, without an event.
  void look_again();
  // Sends Bye and flushes the queue, by the deadline, and shuts down the sending half. Over TCP it
  // waits until the peer has read everything and hangs up. Idempotent.
  void close(ByteView bye, Deadline deadline);

  size_t backlog() override;
  // After the end of the connection this sends nothing and succeeds: the owner learns of the end by
  // on_lost(), after the last received message.
  Status send_message(uint8_t type, ByteView head, ByteView tail) override;
  Status send_control(Control type, ByteView payload, std::vector<int> fds = {});

  // Shuts the socket down without a Bye and without waiting.
  void break_off();
  // The peer has hung up or died: it does not access local memory any more.
  bool peer_is_dead() const { return dead_.load(); }
  // The peer's process has ended. Where it has a pidfd, a Bye or a hang-up is not enough.
  bool process_is_dead() const;
  // Polls the socket, which hangs up when the process dies or runs another program.
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
  // Stops sending: the connection is lost once all received data has been read. The first reason
  // counts.
  void end_with(const Status& why) OH_REQUIRES(mutex_);
  Status queue(uint8_t type, ByteView head, ByteView tail, std::vector<int> fds);

  std::shared_ptr<Node> node_;
  std::weak_ptr<ConnectionOwner> owner_;
  int pid_;
  const bool by_network_;
  UniqueFd pidfd_;

  // Guards the sending half, until `closed_`. Only the watcher uses the receiving half.
  Mutex mutex_;
  MessageSocket socket_;
  bool wants_writable_ OH_GUARDED_BY(mutex_) = false;
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  Status why_ending_ OH_GUARDED_BY(mutex_);
  std::atomic<bool> lost_{false};
  std::atomic<bool> dead_{false};
};

}  // namespace oh
