// SPDX-License-Identifier: Apache-2.0
#include "platform/os/message_socket.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "unit/faulty_os.h"
#include "unit/support.h"

namespace message_socket_test {
namespace {

using namespace oh;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::is_ok;

constexpr size_t kMost = 1 << 20;

struct Pair {
  explicit Pair(size_t most = kMost) {
    auto [first, second] = unit::socket_pair();
    one = MessageSocket(std::move(first), most);
    two = MessageSocket(std::move(second), most);
  }
  MessageSocket one;
  MessageSocket two;
};

// A memfd that contains one number, which identifies it at the other end.
UniqueFd marked_fd(uint32_t mark) {
  UniqueFd fd(::memfd_create("unit", MFD_CLOEXEC));
  EXPECT_EQ(pwrite(fd.get(), &mark, sizeof(mark), 0), 4);
  return fd;
}
uint32_t mark_of(const UniqueFd& fd) {
  uint32_t mark = 0;
  EXPECT_EQ(pread(fd.get(), &mark, sizeof(mark), 0), 4);
  return mark;
}

Bytes raw_message(uint8_t type, uint8_t fds, ByteView payload) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(static_cast<uint32_t>(2 + payload.size()));
  writer.u8(type);
  writer.u8(fds);
  writer.raw(payload);
  return bytes;
}

// Sends bytes and descriptors without the sending side's checks.
ssize_t send_raw(int socket, ByteView bytes, const std::vector<int>& fds = {}) {
  iovec piece{const_cast<uint8_t*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &piece;
  message.msg_iovlen = 1;
  std::vector<char> control(CMSG_SPACE(fds.size() * sizeof(int)));
  if (!fds.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = control.size();
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds.data(), fds.size() * sizeof(int));
  }
  return sendmsg(socket, &message, MSG_NOSIGNAL);
}

TEST(MessageSocketTest, CarriesMessagesInOrder) {
  Pair pair;
  unit::Random random(3);
  std::vector<Bytes> sent;
  for (size_t size : {0, 1, 2, 6, 100, 5000}) {
    sent.push_back(random.bytes(size));
    size_t cut = size / 3;
    ByteView view = sent.back();
    ASSERT_TRUE(
        is_ok(pair.one.send(static_cast<uint8_t>(size % 251), view.first(cut), view.subspan(cut))));
  }
  for (const Bytes& bytes : sent) {
    auto message = pair.two.receive();
    ASSERT_TRUE(is_ok(message));
    ASSERT_TRUE(message->has_value());
    EXPECT_EQ((*message)->type, bytes.size() % 251);
    EXPECT_EQ(Bytes((*message)->payload.begin(), (*message)->payload.end()), bytes);
  }
  auto nothing = pair.two.receive();
  ASSERT_TRUE(is_ok(nothing));
  EXPECT_FALSE(nothing->has_value());
}

TEST(MessageSocketTest, AMessageSplitAtAnyByteArrivesOnce) {
  Bytes stream = raw_message(7, 0, as_bytes("first"));
  Bytes second = raw_message(8, 0, as_bytes("the second"));
  stream.insert(stream.end(), second.begin(), second.end());
  for (size_t cut = 1; cut < stream.size(); ++cut) {
    Pair pair;
    std::vector<std::string> seen;
    auto collect = [&] {
      while (true) {
        auto message = pair.two.receive();
        ASSERT_TRUE(is_ok(message));
        if (!message->has_value()) return;
        ByteView payload = (*message)->payload;
        seen.emplace_back(payload.begin(), payload.end());
      }
    };
    ASSERT_EQ(send_raw(pair.one.fd(), ByteView(stream).first(cut)), static_cast<ssize_t>(cut));
    collect();
    EXPECT_EQ(seen.size(), cut >= 11 ? 1u : 0u) << cut;
    send_raw(pair.one.fd(), ByteView(stream).subspan(cut));
    collect();
    EXPECT_THAT(seen, ::testing::ElementsAre("first", "the second")) << cut;
  }
}

// Sends more in both directions than the kernel's buffers hold, and checks every byte.
void exchange(Pair& pair) {
  unit::Random random(4);
  Bytes large = random.bytes(700 * 1000);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(is_ok(pair.one.send(1, large)));
  UniqueFd fd = marked_fd(77);
  ASSERT_TRUE(is_ok(pair.one.send(2, as_bytes("behind"), {}, {fd.get()})));
  int count = 0;
  while (count < 5) {
    ASSERT_TRUE(is_ok(pair.one.flush()));
    auto message = pair.two.receive();
    ASSERT_TRUE(is_ok(message));
    if (!message->has_value()) continue;
    ++count;
    ByteView payload = (*message)->payload;
    if (count < 5) {
      ASSERT_TRUE(std::equal(payload.begin(), payload.end(), large.begin(), large.end()));
      ASSERT_TRUE((*message)->fds.empty());
    } else {
      ASSERT_EQ((*message)->fds.size(), 1u);
      EXPECT_EQ(mark_of((*message)->fds[0]), 77u);
    }
  }
  EXPECT_EQ(pair.one.backlog(), 0u);
}

TEST(MessageSocketTest, KeepsABacklogAndFlushesIt) {
  Pair pair;
  Bytes large(900 * 1000);
  ASSERT_TRUE(is_ok(pair.one.send(1, large)));
  EXPECT_GT(pair.one.backlog(), 0u);
  Pair other;
  exchange(other);
}

TEST(MessageSocketTest, SurvivesShortReadsAndWrites) {
  FaultyOs faulty;
  faulty.limit_io(1013);
  Pair pair;
  exchange(pair);
}

TEST(MessageSocketTest, SurvivesAStormOfInterrupts) {
  FaultyOs faulty;
  faulty.limit_io(4099);
  faulty.interrupt_all_but(5);
  Pair pair;
  exchange(pair);
  EXPECT_GT(faulty.uses(Call::sendmsg), 100u);
}

TEST(MessageSocketTest, OneByteAtATime) {
  FaultyOs faulty;
  faulty.limit_io(1);
  Pair pair;
  std::vector<UniqueFd> fds;
  for (uint32_t mark = 1; mark <= 6; ++mark) fds.push_back(marked_fd(mark));
  ASSERT_TRUE(is_ok(pair.one.send(1, as_bytes("ab"), {}, {fds[0].get(), fds[1].get()})));
  ASSERT_TRUE(is_ok(pair.one.send(2, as_bytes("none"))));
  ASSERT_TRUE(is_ok(pair.one.send(3, {}, {}, {fds[2].get()})));
  ASSERT_TRUE(is_ok(pair.one.send(4, {}, {}, {fds[3].get(), fds[4].get(), fds[5].get()})));
  std::vector<uint32_t> marks;
  std::vector<size_t> counts;
  while (counts.size() < 4) {
    auto message = pair.two.receive();
    ASSERT_TRUE(is_ok(message));
    ASSERT_TRUE(message->has_value());
    counts.push_back((*message)->fds.size());
    for (const UniqueFd& fd : (*message)->fds) marks.push_back(mark_of(fd));
  }
  EXPECT_THAT(counts, ::testing::ElementsAre(2, 0, 1, 3));
  EXPECT_THAT(marks, ::testing::ElementsAre(1, 2, 3, 4, 5, 6));
}

// The socket duplicates the descriptors of a message that the kernel has not accepted yet.
TEST(MessageSocketTest, DescriptorsMayBeClosedAfterSend) {
  Pair pair;
  ASSERT_TRUE(is_ok(pair.one.send(1, Bytes(900 * 1000))));
  for (uint32_t mark = 1; mark <= 3; ++mark) {
    UniqueFd fd = marked_fd(mark);
    ASSERT_TRUE(is_ok(pair.one.send(2, {}, {}, {fd.get()})));
  }
  std::vector<uint32_t> marks;
  while (marks.size() < 3) {
    ASSERT_TRUE(is_ok(pair.one.flush()));
    auto message = pair.two.receive();
    ASSERT_TRUE(is_ok(message));
    if (!message->has_value()) continue;
    for (const UniqueFd& fd : (*message)->fds) marks.push_back(mark_of(fd));
  }
  EXPECT_THAT(marks, ::testing::ElementsAre(1, 2, 3));
}

TEST(MessageSocketTest, RefusesMoreDescriptorsThanAMessageHolds) {
  Pair pair;
  std::vector<int> fds(MessageSocket::kMaxFds + 1, STDERR_FILENO);
  size_t before = unit::open_fds();
  EXPECT_TRUE(fails_with(pair.one.send(1, {}, {}, fds), OH_ERR_INVALID, "9 descriptors"));
  fds.pop_back();
  ASSERT_TRUE(is_ok(pair.one.send(1, {}, {}, fds)));
  auto message = pair.two.receive();
  ASSERT_TRUE(is_ok(message));
  EXPECT_EQ((*message)->fds.size(), MessageSocket::kMaxFds);
  message = Result<std::optional<MessageSocket::Message>>(std::nullopt);
  EXPECT_EQ(unit::open_fds(), before);
}

// A local lack of descriptors is not a loss of the peer.
TEST(MessageSocketTest, ADescriptorThatCannotBeDuplicatedIsAnErrorOfTheCall) {
  Pair pair;
  EXPECT_TRUE(fails_with(pair.one.send(1, {}, {}, {-1}), OH_ERR_SYSTEM, "EBADF"));
  ASSERT_TRUE(is_ok(pair.one.send(2, as_bytes("goes on"))));
  auto message = pair.two.receive();
  ASSERT_TRUE(is_ok(message));
  EXPECT_EQ((*message)->type, 2);
}

TEST(MessageSocketTest, RefusesMessagesThatAreTooLargeOrTooSmall) {
  for (uint32_t size : {0u, 1u, 103u, 1u << 31, 0xffffffffu}) {
    Pair pair(100);
    Bytes bytes;
    Writer(bytes).u32(size);
    send_raw(pair.one.fd(), bytes);
    EXPECT_TRUE(fails_with(pair.two.receive(), OH_ERR_PROTOCOL, "at most 100")) << size;
  }
  Pair pair(100);
  ASSERT_TRUE(is_ok(pair.one.send(1, Bytes(100))));
  auto message = pair.two.receive();
  ASSERT_TRUE(is_ok(message));
  EXPECT_EQ((*message)->payload.size(), 100u);
}

TEST(MessageSocketTest, RefusesDescriptorsThatDidNotCome) {
  Pair pair;
  send_raw(pair.one.fd(), raw_message(1, 1, {}));
  EXPECT_TRUE(
      fails_with(pair.two.receive(), OH_ERR_PROTOCOL, "announced 1 descriptors, 0 arrived"));
  Pair many;
  send_raw(many.one.fd(), raw_message(1, 255, {}));
  EXPECT_TRUE(fails_with(many.two.receive(), OH_ERR_PROTOCOL));
}

// The descriptors of other messages stay with these, in order.
TEST(MessageSocketTest, SaysWhichMessageLostItsDescriptorsForWantOfRoom) {
  Pair pair;
  UniqueFd first = marked_fd(1);
  UniqueFd third = marked_fd(3);
  ASSERT_TRUE(is_ok(pair.one.send(1, {}, {}, {first.get()})));
  ASSERT_TRUE(is_ok(pair.one.send(2, {}, {}, {first.get(), third.get()})));
  ASSERT_TRUE(is_ok(pair.one.send(3, {}, {}, {third.get()})));
  auto message = pair.two.receive();
  ASSERT_TRUE(is_ok(message));
  EXPECT_EQ(mark_of((*message)->fds.at(0)), 1u);
  {
    // Room for one of two descriptors.
    const unit::FewFiles few(1);
    message = pair.two.receive();
    ASSERT_TRUE(is_ok(message));
    EXPECT_EQ((*message)->type, 2);
    EXPECT_TRUE((*message)->lost_fds);
    EXPECT_TRUE((*message)->fds.empty());
  }
  message = pair.two.receive();
  ASSERT_TRUE(is_ok(message));
  EXPECT_EQ((*message)->type, 3);
  EXPECT_FALSE((*message)->lost_fds);
  EXPECT_EQ(mark_of((*message)->fds.at(0)), 3u);
}

TEST(MessageSocketTest, SendsDescriptorsWithoutRoomForMore) {
  Pair pair;
  UniqueFd marked = marked_fd(7);
  {
    const unit::FewFiles few(0);
    ASSERT_TRUE(is_ok(pair.one.send(1, {}, {}, {marked.get()})));
  }
  auto message = pair.two.receive();
  ASSERT_TRUE(is_ok(message));
  EXPECT_EQ(mark_of((*message)->fds.at(0)), 7u);
}

// The caller closes its descriptors after an error, too, and their numbers may be reused.
TEST(MessageSocketTest, KeepsItsOwnDescriptorsWhereSendingFails) {
  Pair pair;
  UniqueFd first = marked_fd(1);
  const int number = first.get();
  {
    FaultyOs faulty;
    faulty.arm(Call::sendmsg, 0, ETOOMANYREFS);
    EXPECT_TRUE(fails_with(pair.one.send(1, {}, {}, {number}), OH_ERR_PEER_LOST));
  }
  first.reset();
  const UniqueFd second = marked_fd(2);
  ASSERT_EQ(second.get(), number);
  ASSERT_TRUE(is_ok(pair.one.flush()));
  auto message = pair.two.receive();
  ASSERT_TRUE(is_ok(message));
  EXPECT_EQ(mark_of((*message)->fds.at(0)), 1u);
}

// If the descriptors must be kept but cannot be duplicated, the message is not sent; others are.
TEST(MessageSocketTest, SaysThatDescriptorsThatHaveToWaitFindNoRoom) {
  Pair pair;
  UniqueFd marked = marked_fd(7);
  const Bytes piece(64 * 1024, 5);
  size_t sent = 0;
  while (pair.one.backlog() == 0) {
    ASSERT_TRUE(is_ok(pair.one.send(1, piece)));
    ++sent;
  }
  const size_t backlog = pair.one.backlog();
  {
    const unit::FewFiles few(0);
    EXPECT_TRUE(
        fails_with(pair.one.send(2, piece, {}, {marked.get()}), OH_ERR_SYSTEM, "ulimit -n"));
  }
  EXPECT_EQ(pair.one.backlog(), backlog);
  ASSERT_TRUE(is_ok(pair.one.send(3, {}, {}, {marked.get()})));
  marked.reset();
  for (size_t got = 0; got <= sent;) {
    ASSERT_TRUE(is_ok(pair.one.flush()));
    auto message = pair.two.receive();
    ASSERT_TRUE(is_ok(message));
    if (!*message) continue;
    EXPECT_EQ((*message)->type, got < sent ? 1 : 3);
    if (++got > sent) {
      EXPECT_EQ(mark_of((*message)->fds.at(0)), 7u);
    }
  }
}

TEST(MessageSocketTest, RefusesAFloodOfDescriptorsAndLeaksNone) {
  size_t before = unit::open_fds();
  {
    Pair pair;
    std::vector<int> fds(8, STDERR_FILENO);
    // A message that never ends, with descriptors at every byte.
    Bytes start = raw_message(1, 0, Bytes(1000));
    Status status;
    for (size_t i = 0; i < 100 && status.ok(); ++i) {
      send_raw(pair.one.fd(), ByteView(start).subspan(i, 1), fds);
      status = pair.two.receive().status();
    }
    EXPECT_TRUE(fails_with(status, OH_ERR_PROTOCOL, "descriptors arrived without a message"));
  }
  {
    // More at once than fit: the kernel drops the rest, and the message is rejected or lacks some.
    Pair pair;
    send_raw(pair.one.fd(), raw_message(1, 30, {}), std::vector<int>(30, STDERR_FILENO));
    EXPECT_TRUE(fails_with(pair.two.receive(), OH_ERR_PROTOCOL));
  }
  EXPECT_EQ(unit::open_fds(), before);
}

TEST(MessageSocketTest, AHangUpIsNoticedAfterTheLastMessage) {
  Pair pair;
  ASSERT_TRUE(is_ok(pair.one.send(1, as_bytes("last words"))));
  pair.one.shutdown_writes();
  auto message = pair.two.receive();
  ASSERT_TRUE(is_ok(message));
  ASSERT_TRUE(message->has_value());
  EXPECT_TRUE(fails_with(pair.two.receive(), OH_ERR_PEER_LOST, "closed the connection"));

  Pair half;
  send_raw(half.one.fd(), as_bytes("ab"));
  half.one.close();
  EXPECT_TRUE(fails_with(half.two.receive(), OH_ERR_PEER_LOST));
  EXPECT_TRUE(fails_with(half.two.send(1, {}), OH_ERR_PEER_LOST));
  EXPECT_TRUE(fails_with(half.one.send(1, {}), OH_ERR_PEER_LOST, "is closed"));
  EXPECT_TRUE(fails_with(half.one.receive(), OH_ERR_PEER_LOST, "is closed"));
}

TEST(MessageSocketTest, BrokenConnectionsCarryTheirReason) {
  FaultyOs faulty;
  Pair pair;
  faulty.arm(Call::sendmsg, 0, EPIPE);
  EXPECT_TRUE(fails_with(pair.one.send(1, {}), OH_ERR_PEER_LOST, "EPIPE"));
  faulty.arm(Call::recvmsg, 0, ECONNRESET);
  EXPECT_TRUE(fails_with(pair.two.receive(), OH_ERR_PEER_LOST, "ECONNRESET"));
}

TEST(MessageSocketTest, WaitsEndAtTheirDeadline) {
  Pair pair;
  EXPECT_TRUE(fails_with(pair.two.receive_until(Deadline::after(kMillisecond), "testing"),
                         OH_ERR_TIMEOUT, "while testing"));
  ASSERT_TRUE(is_ok(pair.one.send(1, Bytes(900 * 1000))));
  EXPECT_TRUE(fails_with(pair.one.flush_until(Deadline::after(kMillisecond), "flushing"),
                         OH_ERR_TIMEOUT, "while flushing"));
  unit::Threads threads;
  threads.start([&] {
    Result<MessageSocket::Message> message =
        pair.two.receive_until(Deadline::after(20 * kSecond), "testing");
    EXPECT_TRUE(is_ok(message));
  });
  EXPECT_TRUE(is_ok(pair.one.flush_until(Deadline::after(20 * kSecond), "flushing")));
}

// A stream that never empties must not let the sender's memory grow.
TEST(MessageSocketTest, ABacklogThatNeverEmptiesIsCompacted) {
  Pair pair;
  Bytes part(100 * 1000);
  uint64_t received = 0;
  for (int i = 0; i < 400; ++i) {
    ASSERT_TRUE(is_ok(pair.one.send(1, part)));
    while (pair.one.backlog() > 1000 * 1000) {
      auto message = pair.two.receive();
      ASSERT_TRUE(is_ok(message));
      received += message->has_value();
      ASSERT_TRUE(is_ok(pair.one.flush()));
    }
  }
  EXPECT_GT(received, 300u);
}

}  // namespace
}  // namespace message_socket_test
