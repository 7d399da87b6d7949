// SPDX-License-Identifier: Apache-2.0
//
// Frames that a connection still delivers after the peer has ended.
#include "link/connection.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <future>

#include "platform/os/net.h"
#include "platform/os/os.h"
#include "unit/support.h"

namespace connection_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

constexpr uint8_t kPing = static_cast<uint8_t>(Control::kPing);
constexpr int kMessages = 500;  // several turns of the watcher

Deadline in_time() { return Deadline::after(20 * kSecond); }

// Counts frames and replies to pings, as a peer does.
class Owner : public ConnectionOwner {
 public:
  explicit Owner(std::shared_ptr<Connection>* connection) : connection_(*connection) {}

  Status on_message(uint8_t type, ByteView payload, std::vector<UniqueFd>) override {
    if (type == kPing) return connection_->send_control(Control::kPong, payload);
    EXPECT_EQ(type, kFrameMessage);
    ++frames;
    if (on_frame) on_frame();
    return {};
  }
  void on_idle() override {}
  void on_lost(const Status& status) override { lost_.set_value(status); }

  Status wait_until_lost() {
    std::future<Status> lost = lost_.get_future();
    if (lost.wait_for(std::chrono::seconds(20)) == std::future_status::ready) return lost.get();
    return error(OH_ERR_TIMEOUT, "the connection was not lost");
  }
  std::atomic<int> frames{0};
  std::function<void()> on_frame;

 private:
  std::shared_ptr<Connection>& connection_;
  std::promise<Status> lost_;
};

class ConnectionTest : public ::testing::Test {
 protected:
  ConnectionTest() {
    node_ = *Node::get(unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}}));
    auto [ours, theirs] = unit::socket_pair();
    ours_ = std::move(ours);
    there_ = MessageSocket(std::move(theirs), 1 << 20);
  }
  ~ConnectionTest() override {
    if (connection_) connection_->close({}, Deadline::after(0));
    connection_.reset();
  }

  void start(int pid = 0) {
    connection_ =
        std::make_shared<Connection>(node_, MessageSocket(std::move(ours_), 1 << 20), pid);
    ASSERT_TRUE(is_ok(connection_->start(owner_)));
  }
  // Blocks the watcher's thread until release().
  void hold_watcher() {
    std::promise<void> held;
    release_ = std::promise<void>();
    node_->watcher().post([&held, until = release_.get_future().share()] {
      held.set_value();
      until.wait();
    });
    held.get_future().wait();
  }
  void release_watcher() { release_.set_value(); }

  // In one write: separately, each would take a page of the kernel's buffer.
  void say_frames(int count) {
    Bytes bytes;
    Writer writer(bytes);
    for (int i = 0; i < count; ++i) {
      writer.u32(2);
      writer.u8(kFrameMessage);
      writer.u8(0);
    }
    ASSERT_EQ(write(there_.fd(), bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
  }
  void say_ping() { ASSERT_TRUE(is_ok(there_.send(kPing, Bytes(8)))); }

  void expect_all_frames() {
    release_watcher();
    EXPECT_TRUE(fails_with(owner_->wait_until_lost(), OH_ERR_PEER_LOST));
    EXPECT_EQ(owner_->frames.load(), kMessages);
  }

  std::shared_ptr<Node> node_;
  UniqueFd ours_;
  MessageSocket there_;
  std::shared_ptr<Connection> connection_;
  std::shared_ptr<Owner> owner_ = std::make_shared<Owner>(&connection_);
  std::promise<void> release_;
};

// The reply to the ping fails; the frames behind the ping arrive all the same.
TEST_F(ConnectionTest, FramesBehindAPingThatCannotBeAnsweredArrive) {
  start();
  hold_watcher();
  say_ping();
  say_frames(kMessages);
  there_.close();
  expect_all_frames();
}

// The same for a send by another thread, which notices the loss first.
TEST_F(ConnectionTest, FramesArriveThoughASendOfOursHasFailed) {
  start();
  hold_watcher();
  say_frames(kMessages);
  there_.close();
  for (int i = 0; i < 3; ++i) (void)connection_->send_message(kFrameMessage, {}, {}).ok();
  expect_all_frames();
}

// The socket reports the hang-up and room for our backlog in one event.
TEST_F(ConnectionTest, FramesArriveThoughOurBacklogCannotLeave) {
  start();
  hold_watcher();
  const Bytes large(64 * 1024);
  while (connection_->backlog() == 0) {
    ASSERT_TRUE(is_ok(connection_->send_message(kFrameMessage, {}, large)));
  }
  say_frames(kMessages);
  there_.close();
  expect_all_frames();
}

// The peer closed with unread bytes of ours, so the kernel reports a reset.
TEST_F(ConnectionTest, FramesArriveBeforeAReset) {
  start();
  ASSERT_TRUE(is_ok(connection_->send_message(kFrameMessage, {}, Bytes(1000))));
  hold_watcher();
  say_frames(kMessages);
  there_.close();
  expect_all_frames();
}

// The peer has not read everything when this side closes, and has sent bytes that this side has not
// read: the socket of a closed TCP connection is reset in that case.
TEST_F(ConnectionTest, WhatWasSentBeforeClosingArrivesOverTcp) {
  const SocketAddress here = *SocketAddress::numeric("127.0.0.1", unit::free_port(AF_INET));
  Result<UniqueFd> listening = listen_on(here);
  ASSERT_TRUE(is_ok(listening));
  int small = 4096;
  ASSERT_EQ(setsockopt(listening->get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof(small)), 0);
  Result<UniqueFd> ours = connect_to({here}, in_time());
  ASSERT_TRUE(is_ok(ours));
  ASSERT_TRUE(is_ok(wait_ready(listening->get(), POLLIN, in_time(), "accepting")));
  ours_ = std::move(*ours);
  there_ = MessageSocket(UniqueFd(os().accept(listening->get())), 1 << 20);
  start();
  hold_watcher();
  say_ping();
  size_t sent = 0;
  const Bytes large(60000);
  while (connection_->backlog() == 0) {
    ASSERT_TRUE(is_ok(connection_->send_message(kFrameMessage, {}, large)));
    ++sent;
  }
  unit::Threads threads;
  threads.start([&] {
    connection_->close(as_bytes("bye"), in_time());
    connection_.reset();
  });
  size_t got = 0;
  Result<MessageSocket::Message> message = there_.receive_until(in_time(), "a frame");
  for (; message.ok() && message->type == kFrameMessage; ++got) {
    message = there_.receive_until(in_time(), "a frame");
  }
  EXPECT_TRUE(is_ok(message));
  EXPECT_EQ(got, sent);
  there_.close();
  release_watcher();
}

// The death is noticed before the bytes are read: its descriptor is handled first.
TEST_F(ConnectionTest, FramesOfADeadProcessArrive) {
  pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  say_frames(kMessages);
  // This end stays open, as in a child of the dead process.
  start(child);
  Status lost = owner_->wait_until_lost();
  EXPECT_TRUE(fails_with(lost, OH_ERR_PEER_LOST, "has died"));
  EXPECT_EQ(owner_->frames.load(), kMessages);
  EXPECT_TRUE(connection_->peer_is_dead());
  EXPECT_TRUE(connection_->process_is_dead());
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

// Two links are ready, and one of them delivers more than the watcher handles in one turn.
TEST_F(ConnectionTest, AFloodOfFramesDelaysOtherLinksByOneTurnAtMost) {
  constexpr int kFlood = 5000;
  auto [ours, theirs] = unit::socket_pair();
  std::shared_ptr<Connection> other =
      std::make_shared<Connection>(node_, MessageSocket(std::move(ours), 1 << 20), 0);
  auto owner = std::make_shared<Owner>(&other);
  std::promise<int> flooded;
  owner->on_frame = [&] { flooded.set_value(owner_->frames.load()); };
  start();
  ASSERT_TRUE(is_ok(other->start(owner)));
  hold_watcher();
  say_frames(kFlood);
  ASSERT_TRUE(is_ok(MessageSocket(std::move(theirs), 1 << 20).send(kFrameMessage, {})));
  release_watcher();
  EXPECT_LT(flooded.get_future().get(), kFlood / 10);
  // The rest was already read from the socket, which is not ready again: it must be handled
  // nevertheless.
  EXPECT_TRUE(unit::eventually([&] { return owner_->frames.load() == kFlood; }));
  other->close({}, Deadline::after(0));
}

}  // namespace
}  // namespace connection_test
