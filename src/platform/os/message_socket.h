// SPDX-License-Identifier: Apache-2.0
//
// Length-prefixed messages and file descriptors over a nonblocking stream socket:
//
//   | u32 size of the rest | u8 type | u8 number of descriptors | payload |
//
// The handshake, the control traffic and the data path without a segment use it.
//
// Threading: guarded by its owner.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/wire.h"
#include "platform/os/handles.h"

namespace oh {

class MessageSocket {
 public:
  struct Message {
    uint8_t type = 0;
    ByteView payload;  // valid until the next receive()
    std::vector<UniqueFd> fds;
    bool lost_fds = false;  // the kernel dropped the message's descriptors: fds is empty
  };
  // Why the kernel dropped descriptors, for error texts.
  static constexpr const char* kWhyLost =
      "the kernel dropped descriptors on their way: the process that was to get them is at its "
      "limit of open files (ulimit -n), or a security module, like SELinux, forbids them";
  static constexpr size_t kMaxFds = 8;

  MessageSocket() = default;
  MessageSocket(UniqueFd fd, size_t max_message) : fd_(std::move(fd)), max_message_(max_message) {}

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  // Larger messages from the peer are a protocol error. The limit is small before authentication.
  void set_max_message(size_t bytes) { max_message_ = bytes; }

  // Whether to receive descriptors; otherwise the kernel drops them. Only after the sender is
  // trusted.
  void take_fds(bool take) { takes_fds_ = take; }

  // Queues a message and writes as much as the kernel accepts. OH_ERR_PEER_LOST: the connection is
  // lost. Any other error concerns the descriptors; then nothing was queued.
  Status send(uint8_t type, ByteView head, ByteView tail = {}, std::vector<int> fds = {});
  // Bytes that the kernel has not accepted yet.
  size_t backlog() const { return out_.size() - out_done_; }
  Status flush();

  // Returns the next complete message, or none yet. OH_ERR_PEER_LOST after the peer has closed the
  // connection.
  Result<std::optional<Message>> receive();
  // Whether receive() would return a buffered message or an error without reading the socket. The
  // descriptor is not readable for those.
  bool has_message() const;

  // Waits for the next message. For a handshake that runs on the caller's thread.
  Result<Message> receive_until(Deadline deadline, const char* what);
  Status flush_until(Deadline deadline, const char* what);

  // Shuts down writing. The peer can still read what was sent.
  void shutdown_writes();
  // Call after shutdown_writes(): discards input until the peer closes the connection or the
  // deadline passes. Closing a TCP socket with unread input resets the connection, which would
  // discard unsent data.
  void await_hang_up(Deadline deadline);
  void close() { fd_.reset(); }

 private:
  struct OutFds {
    size_t at;  // offset in out_ of the byte that carries them
    std::vector<int> fds;
    std::vector<UniqueFd> kept;  // owns fds, once send() has returned
  };
  Status keep_unsent_fds();
  Result<bool> fill();  // false: nothing to read now
  void compact();

  UniqueFd fd_;
  size_t max_message_ = 0;
  bool takes_fds_ = true;
  Bytes out_;
  size_t out_done_ = 0;
  std::deque<OutFds> out_fds_;
  Bytes in_;
  size_t in_begin_ = 0;
  size_t in_end_ = 0;
  std::deque<UniqueFd> in_fds_;  // an invalid one stands for a message's dropped descriptors
};

}  // namespace oh
