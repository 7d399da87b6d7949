// SPDX-License-Identifier: Apache-2.0
#include "platform/os/message_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "platform/os/net.h"
#include "platform/os/os.h"

namespace oh {
namespace {
constexpr size_t kReadChunk = 64 * 1024;
// Before authentication, when messages are short and most connections end early.
constexpr size_t kFirstChunk = 4 * 1024;
constexpr size_t kCompactAt = 256 * 1024;

Status lost(int error_number) {
  return Status::from_errno(OH_ERR_PEER_LOST, error_number,
                            error_number == ETIMEDOUT
                                ? "its host answers no more (ONEHOP_PEER_TIMEOUT says how long)"
                                : "the connection broke");
}
}  // namespace

Status MessageSocket::send(uint8_t type, ByteView head, ByteView tail, std::vector<int> fds) {
  if (!fd_.valid()) return error(OH_ERR_PEER_LOST, "the connection is closed");
  compact();
  if (fds.size() > kMaxFds) {
    return error(OH_ERR_INVALID, "a message with %zu descriptors: at most %zu fit", fds.size(),
                 kMaxFds);
  }
  for (int fd : fds) {
    if (fcntl(fd, F_GETFD) >= 0) continue;
    return Status::from_errno(OH_ERR_SYSTEM, errno, strf("descriptor %d, to be sent", fd));
  }
  const bool carries = !fds.empty();
  const auto count = static_cast<uint8_t>(fds.size());
  if (carries) out_fds_.push_back({out_.size(), std::move(fds), {}});
  Writer writer(out_);
  writer.u32(static_cast<uint32_t>(2 + head.size() + tail.size()));
  writer.u8(type);
  writer.u8(count);
  writer.raw(head);
  writer.raw(tail);
  Status sent = flush();
  // Also after an error: a later flush() must not send another file that reuses the number.
  Status kept = carries ? keep_unsent_fds() : Status();
  return sent.ok() ? kept : sent;
}

// Duplicates the descriptors of the last message if it is still queued, since the caller may now
// close its own. A message that the kernel accepts at once needs no duplicates, so a process at its
// descriptor limit can still send. After an error the message is dropped.
Status MessageSocket::keep_unsent_fds() {
  if (out_fds_.empty() || !out_fds_.back().kept.empty()) return {};
  OutFds& last = out_fds_.back();
  for (int& fd : last.fds) {
    last.kept.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (!last.kept.back().valid()) {
      Status failed =
          Status::from_errno(OH_ERR_SYSTEM, errno, "duplicating a descriptor to be sent");
      out_.resize(last.at);
      out_fds_.pop_back();
      return failed;
    }
    fd = last.kept.back().get();
  }
  return {};
}

Status MessageSocket::flush() {
  while (backlog() > 0) {
    // A write ends before the next message with descriptors, and starts with its own descriptors.
    size_t end = out_.size();
    const OutFds* carried = nullptr;
    if (!out_fds_.empty() && out_fds_.front().at == out_done_) carried = &out_fds_.front();
    size_t next = carried ? 1 : 0;
    if (out_fds_.size() > next) end = out_fds_[next].at;

    iovec piece{out_.data() + out_done_, end - out_done_};
    msghdr message{};
    message.msg_iov = &piece;
    message.msg_iovlen = 1;
    alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))] = {};
    if (carried) {
      message.msg_control = control;
      message.msg_controllen = CMSG_SPACE(carried->fds.size() * sizeof(int));
      cmsghdr* header = CMSG_FIRSTHDR(&message);
      header->cmsg_level = SOL_SOCKET;
      header->cmsg_type = SCM_RIGHTS;
      header->cmsg_len = CMSG_LEN(carried->fds.size() * sizeof(int));
      for (size_t i = 0; i < carried->fds.size(); ++i) {
        std::memcpy(CMSG_DATA(header) + i * sizeof(int), &carried->fds[i], sizeof(int));
      }
    }
    int64_t sent = os().sendmsg(fd_.get(), &message, 0);
    if (sent == -EAGAIN) return {};
    if (sent == -EINTR) continue;
    if (sent < 0) return lost(static_cast<int>(-sent));
    if (carried) out_fds_.pop_front();
    out_done_ += static_cast<size_t>(sent);
  }
  out_.clear();
  out_done_ = 0;
  return {};
}

// Drops the bytes that the kernel has accepted, so that a backlog that never empties does not grow
// the buffer.
void MessageSocket::compact() {
  if (out_done_ < kCompactAt) return;
  out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(out_done_));
  for (OutFds& carried : out_fds_) carried.at -= out_done_;
  out_done_ = 0;
}

Result<bool> MessageSocket::fill() {
  if (in_begin_ == in_end_) in_begin_ = in_end_ = 0;
  const size_t chunk = in_.empty() && max_message_ < kReadChunk ? kFirstChunk : kReadChunk;
  if (in_begin_ > 0 && in_.size() - in_end_ < chunk) {
    std::memmove(in_.data(), in_.data() + in_begin_, in_end_ - in_begin_);
    in_end_ -= in_begin_;
    in_begin_ = 0;
  }
  if (in_.size() - in_end_ < chunk) in_.resize(in_end_ + chunk);
  iovec piece{in_.data() + in_end_, in_.size() - in_end_};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFds * sizeof(int))];
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  if (takes_fds_) {
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
  int64_t got;
  do {
    got = os().recvmsg(fd_.get(), &message, 0);
  } while (got == -EINTR);
  if (got == -EAGAIN) return false;
  if (got < 0) return lost(static_cast<int>(-got));
  const size_t before = in_fds_.size();
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      in_fds_.emplace_back(fd);
    }
  }
  // One call returns the descriptors of at most one message, after those of earlier ones.
  if (takes_fds_ && (message.msg_flags & MSG_CTRUNC)) {
    in_fds_.resize(before);
    in_fds_.emplace_back();
  }
  if (in_fds_.size() > 2 * kMaxFds) {
    return error(OH_ERR_PROTOCOL, "%zu descriptors arrived without a message", in_fds_.size());
  }
  if (got == 0) return error(OH_ERR_PEER_LOST, "the other side closed the connection");
  in_end_ += static_cast<size_t>(got);
  return true;
}

Result<std::optional<MessageSocket::Message>> MessageSocket::receive() {
  if (!fd_.valid()) return error(OH_ERR_PEER_LOST, "the connection is closed");
  while (true) {
    Reader reader(ByteView(in_).subspan(in_begin_, in_end_ - in_begin_));
    uint32_t size = reader.u32();
    if (reader.ok()) {
      if (size < 2 || size > max_message_ + 2) {
        return error(OH_ERR_PROTOCOL, "a message of %u bytes arrived, at most %zu are allowed",
                     size, max_message_);
      }
      if (reader.remaining() >= size) {
        Message message;
        message.type = reader.u8();
        size_t count = reader.u8();
        message.payload = reader.raw(size - 2);
        if (count > 0 && count <= kMaxFds && !in_fds_.empty() && !in_fds_.front().valid()) {
          in_fds_.pop_front();
          message.lost_fds = true;
          count = 0;
        }
        if (count > in_fds_.size() || count > kMaxFds) {
          return error(OH_ERR_PROTOCOL, "a message announced %zu descriptors, %zu arrived", count,
                       in_fds_.size());
        }
        for (size_t i = 0; i < count; ++i) {
          message.fds.push_back(std::move(in_fds_.front()));
          in_fds_.pop_front();
        }
        in_begin_ += 4 + size;
        return std::optional<Message>(std::move(message));
      }
    }
    OH_ASSIGN_OR_RETURN(bool more, fill());
    if (!more) return std::optional<Message>();
  }
}

bool MessageSocket::has_message() const {
  Reader reader(ByteView(in_).subspan(in_begin_, in_end_ - in_begin_));
  uint32_t size = reader.u32();
  return reader.ok() && (size > max_message_ + 2 || reader.remaining() >= size);
}

Result<MessageSocket::Message> MessageSocket::receive_until(Deadline deadline, const char* what) {
  while (true) {
    OH_ASSIGN_OR_RETURN(std::optional<Message> message, receive());
    if (message) return std::move(*message);
    OH_RETURN_IF_ERROR(wait_ready(fd_.get(), POLLIN, deadline, what));
  }
}

Status MessageSocket::flush_until(Deadline deadline, const char* what) {
  while (true) {
    OH_RETURN_IF_ERROR(flush());
    if (backlog() == 0) return {};
    OH_RETURN_IF_ERROR(wait_ready(fd_.get(), POLLOUT, deadline, what));
  }
}

void MessageSocket::shutdown_writes() {
  if (fd_.valid()) os().shutdown(fd_.get(), SHUT_WR);
}

void MessageSocket::await_hang_up(Deadline deadline) {
  // Use a separate buffer: a receive() of the watcher may still be running.
  Bytes dropped(kReadChunk);
  iovec piece{dropped.data(), dropped.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  while (!deadline.passed()) {
    int64_t got = os().recvmsg(fd_.get(), &message, 0);
    if (got == 0 || (got < 0 && got != -EAGAIN && got != -EINTR)) return;
    if (got == -EAGAIN && !wait_ready(fd_.get(), POLLIN, deadline, "closing").ok()) return;
  }
}

}  // namespace oh
