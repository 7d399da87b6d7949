// SPDX-License-Identifier: Apache-2.0
//
// Length-prefixed messages and file descriptors over a stream socket, without ever blocking:
//
//   | u32 size of the rest | u8 type | u8 number of descriptors | payload |
//
// The handshake, the control traffic and the data path without a segment all use it.
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
    bool lost_fds = false;  // it came with descriptors, and the kernel dropped them: fds is empty
  };
  // Why it does.
  static constexpr const char* kWhyLost =
      "the kernel dropped descriptors on their way: the process that was to get them is at its "
      "limit of open files (ulimit -n), or a security module, like SELinux, forbids them";
  static constexpr size_t kMaxFds = 8;

  MessageSocket() = default;
  MessageSocket(UniqueFd fd, size_t max_message) : fd_(std::move(fd)), max_message_(max_message) {}

  int fd() const { return fd_.get(); }
  bool valid() const { return fd_.valid(); }
  // Larger messages from the other side are a protocol error. Small before authentication.
  void set_max_message(size_t bytes) { max_message_ = bytes; }

  // Whether descriptors are taken at all; else the kernel drops them. Not before one trusts the
  // sender.
  void take_fds(bool take) { takes_fds_ = take; }

  // Queues a message and writes what the kernel takes. OH_ERR_PEER_LOST: the connection is gone.
  // Any other failure is about the descriptors; nothing was queued.
  Status send(uint8_t type, ByteView head, ByteView tail = {}, std::vector<int> fds = {});
  // Bytes that the kernel has not taken yet.
  size_t backlog() const { return out_.size() - out_done_; }
  Status flush();

  // The next whole message, or nothing yet. OH_ERR_PEER_LOST once the other side has hung up.
  Result<std::optional<Message>> receive();
  // Whether receive() has one, or an error, without asking the kernel: its descriptor does not tell
  // of those.
  bool has_message() const;

  // Waits for the next message; for the side of a handshake that runs on the caller's thread.
  Result<Message> receive_until(Deadline deadline, const char* what);
  Status flush_until(Deadline deadline, const char* what);

  // Says that nothing more will be sent; what was sent stays readable for the other side.
  void shutdown_writes();
  // After that: waits until the other side hangs up, or for the deadline, and drops what it sends
  // meanwhile. A TCP socket that is closed with bytes unread resets the connection, which discards
  // what the kernel has not sent yet.
  void await_hang_up(Deadline deadline);
  void close() { fd_.reset(); }

 private:
  struct OutFds {
    size_t at;  // byte of out_ that carries them
    std::vector<int> fds;
    std::vector<UniqueFd> kept;  // that fds are, once send() has returned
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
  std::deque<UniqueFd> in_fds_;  // an invalid one stands for those of one message, lost
};

}  // namespace oh
