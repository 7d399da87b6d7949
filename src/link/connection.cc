// SPDX-License-Identifier: Apache-2.0
#include "link/connection.h"

#include <errno.h>
#include <poll.h>
#include <sys/epoll.h>

#include "base/log.h"
#include "platform/os/net.h"
#include "platform/os/os.h"

namespace oh {
namespace {
constexpr size_t kMaxControlMessage = SocketChannel::kMaxPayload + 128;
// Frames stop far below this limit. Only the answers to a peer that sends requests and does not
// read reach it.
constexpr size_t kMaxBacklog = 1 << 20;
// Limits of one link in one turn of the watcher: about 100 us.
constexpr int kMessagesAtOnce = 64;
constexpr size_t kBytesAtOnce = 256 * 1024;
// How long data that was sent over UCX before the end of the socket may take to arrive, and how
// often to poll for it.
constexpr int64_t kLastWords = 200 * kMillisecond;
constexpr int64_t kLook = 100 * kMicrosecond;
}  // namespace

// Detects the death of the process itself, even if one of its children keeps the socket open.
class Connection::DeathWatch : public Watcher::Handler {
 public:
  explicit DeathWatch(std::weak_ptr<Connection> connection) : connection_(std::move(connection)) {}
  void on_ready(uint32_t) override {
    if (std::shared_ptr<Connection> connection = connection_.lock()) connection->on_death();
  }

 private:
  std::weak_ptr<Connection> connection_;
};

Connection::Connection(std::shared_ptr<Node> node, MessageSocket socket, int pid)
    : node_(std::move(node)),
      pid_(pid),
      by_network_(!is_unix_socket(socket.fd())),
      socket_(std::move(socket)) {}

Connection::~Connection() {
  if (pidfd_.valid()) node_->watcher().remove(pidfd_.get());
}

Status Connection::start(std::weak_ptr<ConnectionOwner> owner) {
  owner_ = std::move(owner);
  socket_.set_max_message(kMaxControlMessage);
  // Add the socket last: from then on the watcher's thread may lose the connection.
  watch_death(pid_);
  {
    MutexLock lock(mutex_);
    // close() has run already: nothing would remove the socket from the watcher.
    if (closed_) return error(OH_ERR_CLOSED, "the link was closed while it was set up");
    OH_RETURN_IF_ERROR(
        node_->watcher().add(socket_.fd(), EPOLLIN | EPOLLRDHUP, shared_from_this()));
  }
  // If the process has died by now, lose() ran before the socket was added.
  if (lost_.load()) node_->watcher().remove(socket_.fd());
  // The watcher gets no event for bytes that arrived with the last message of the hello.
  look_again();
  return {};
}

void Connection::look_again() {
  node_->watcher().post([weak = weak_from_this()] {
    if (std::shared_ptr<Connection> connection = weak.lock()) connection->on_ready(EPOLLIN);
  });
}

void Connection::watch_death(int pid) {
  if (pid <= 0) return;
  int result = os().pidfd_open(pid);
  if (result < 0) return;  // the socket still hangs up
  pidfd_ = UniqueFd(result);
  auto watch = std::make_shared<DeathWatch>(weak_from_this());
  (void)node_->watcher().add(pidfd_.get(), EPOLLIN, watch).ok();
}

void Connection::close(ByteView bye, Deadline deadline) {
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    // From now on only this thread uses the sending half. The watcher must not wait for it.
    closed_ = true;
  }
  // The pidfd stays watched: a buffer may be in doubt until the process has died.
  node_->watcher().remove(socket_.fd());
  if (lost_.load()) return;
  bool sent = socket_.send(static_cast<uint8_t>(Control::kBye), bye).ok() &&
              socket_.flush_until(deadline, "closing").ok();
  (void)sent;  // a peer that does not read sees the hang-up
  socket_.shutdown_writes();
  // The watcher thread never waits for a peer.
  if (by_network_ && !node_->watcher().on_thread()) socket_.await_hang_up(deadline);
}

bool Connection::is_open() const {
  pollfd entry{socket_.fd(), POLLRDHUP, 0};
  int result;
  do {
    result = os().poll(&entry, 1, 0);
  } while (result == -EINTR);
  return result == 0;
}

size_t Connection::backlog() {
  MutexLock lock(mutex_);
  return closed_ ? 0 : socket_.backlog();
}

Status Connection::queue(uint8_t type, ByteView head, ByteView tail, std::vector<int> fds) {
  MutexLock lock(mutex_);
  if (closed_ || !why_ending_.ok()) return {};
  if (socket_.backlog() > kMaxBacklog) {
    return error(OH_ERR_PROTOCOL, "it does not read: %zu bytes of control messages wait for it",
                 socket_.backlog());
  }
  Status sent = socket_.send(type, head, tail, std::move(fds));
  if (sent.code() == OH_ERR_PEER_LOST) {
    // Not returned: an answer that cannot be sent must not keep the watcher from reading what the
    // peer had sent before. The watcher loses the connection afterwards.
    end_with(sent);
    look_again();
    return {};
  }
  OH_RETURN_IF_ERROR(sent);
  if (socket_.backlog() && !wants_writable_) {
    wants_writable_ = true;
    return node_->watcher().modify(socket_.fd(), EPOLLIN | EPOLLRDHUP | EPOLLOUT);
  }
  return {};
}

Status Connection::send_message(uint8_t type, ByteView head, ByteView tail) {
  return queue(type, head, tail, {});
}

Status Connection::send_control(Control type, ByteView payload, std::vector<int> fds) {
  return queue(static_cast<uint8_t>(type), payload, {}, std::move(fds));
}

// Handles received messages, up to a limit, so that other links get their turn; later turns handle
// the rest. `end`: why the connection ends once nothing is left to read; ok while it is open.
Status Connection::receive_some(ConnectionOwner& owner, const Status& end) {
  size_t bytes = 0;
  for (int count = 0; count < kMessagesAtOnce && bytes < kBytesAtOnce; ++count) {
    Result<std::optional<MessageSocket::Message>> next = socket_.receive();
    const bool at_end = next.ok() ? !*next : next.status().code() == OH_ERR_PEER_LOST;
    if (at_end && !end.ok()) return end;
    OH_ASSIGN_OR_RETURN(std::optional<MessageSocket::Message> message, std::move(next));
    if (!message) return {};
    bytes += message->payload.size();
    if (message->lost_fds) {
      // Memory that cannot be mapped does not end the link.
      const auto type = static_cast<Control>(message->type);
      if (type != Control::kBlock && type != Control::kExport && type != Control::kExportMore) {
        return error(OH_ERR_LINK, "%s", MessageSocket::kWhyLost);
      }
      OH_LOG(kWarn, "memory of process %d cannot be mapped: %s", pid_, MessageSocket::kWhyLost);
    }
    OH_RETURN_IF_ERROR(owner.on_message(message->type, message->payload, std::move(message->fds)));
  }
  // No event reports messages that are buffered already, nor the end of a process twice.
  if (socket_.has_message() || !end.ok()) look_again();
  return {};
}

void Connection::flush() {
  if (!why_ending_.ok()) return;
  Status status = socket_.flush();
  if (status.ok() && socket_.backlog() == 0 && wants_writable_) {
    wants_writable_ = false;
    status = node_->watcher().modify(socket_.fd(), EPOLLIN | EPOLLRDHUP);
  }
  if (!status.ok()) end_with(status);
}

void Connection::end_with(const Status& why) {
  if (why_ending_.ok()) why_ending_ = why;
}

void Connection::on_ready(uint32_t events) {
  std::shared_ptr<ConnectionOwner> owner = owner_.lock();
  if (!owner || lost_.load()) return;
  Status end;
  {
    MutexLock lock(mutex_);
    if (closed_) return;
    if (events & EPOLLOUT) flush();
    end = why_ending_;
  }
  Status status = receive_some(*owner, end);
  if (status.ok()) {
    owner->on_idle();
  } else {
    lose(status);
  }
}

bool Connection::process_is_dead() const {
  if (!pidfd_.valid()) return dead_.load();
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return os().poll(&ended, 1, 0) > 0;
}

void Connection::break_off() { os().shutdown(socket_.fd(), SHUT_RDWR); }

void Connection::lose(const Status& status) {
  if (lost_.exchange(true)) return;
  // After a hang-up or a Bye the peer does not access local memory any more.
  if (status.code() == OH_ERR_PEER_LOST) dead_.store(true);
  node_->watcher().remove(socket_.fd());
  drain(status, Deadline::after(kLastWords));
}

// Reports the end to the owner once nothing more is expected, or at the deadline.
void Connection::drain(const Status& status, Deadline deadline) {
  std::shared_ptr<ConnectionOwner> owner = owner_.lock();
  if (owner && !deadline.passed() && owner->expects_more()) {
    node_->watcher().post_at(now_ns() + kLook, [weak = weak_from_this(), status, deadline] {
      if (std::shared_ptr<Connection> self = weak.lock()) self->drain(status, deadline);
    });
    return;
  }
  // The owner stops accessing the peer's memory before the peer sees the hang-up.
  if (owner) owner->on_lost(status);
  break_off();
}

void Connection::on_death() {
  dead_.store(true);
  node_->watcher().remove(pidfd_.get());
  {
    MutexLock lock(mutex_);
    end_with(error(OH_ERR_PEER_LOST, "process %d has died", pid_));
  }
  on_ready(EPOLLIN);
}

}  // namespace oh
