// SPDX-License-Identifier: Apache-2.0
//
// A link over UCX that is closed before the other side's handshake has arrived, while that side
// makes no progress, or dies: no process is aborted. UCX 1.13 aborts ("got REP message") when it
// replies to such a handshake with an endpoint of its own.
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "conformance/sides.h"
#include "single_thread.h"
#include "transport/ucx/ucx_channel.h"
#include "ucx_listener.h"

namespace conformance::ucx_handshake {
namespace {

using namespace oh;

// One side, in its own process.
class OneEnd {
 public:
  explicit OneEnd(int fd) : fd_(fd) {
    Result<const UcxContext*> context = UcxContext::get("", /*rma=*/false);
    if (!context.ok()) _exit(1);
    worker_ =
        std::move(*UcxWorker::create(**context, UcxPoolLimits{}, std::make_shared<NoListener>()));
    channel_ = std::make_unique<UcxChannel>(worker_, /*peer_credit=*/1 << 20, kKey, 0);
  }
  void connect() {
    UcxChannel::Remote own = *channel_->own(/*network=*/false);
    const uint64_t numbers[] = {own.link, own.max_header, own.address.size()};
    write_all(numbers, sizeof(numbers));
    write_all(own.address.data(), own.address.size());
    uint64_t theirs[3];
    read_all(theirs, sizeof(theirs));
    UcxChannel::Remote remote{Bytes(theirs[2]), static_cast<uint32_t>(theirs[0]), kKey, theirs[1]};
    read_all(remote.address.data(), remote.address.size());
    if (!channel_->connect(remote, /*asked_inline=*/256).ok()) _exit(1);
  }
  // The first message makes UCX send its handshake.
  void probe() { (void)channel_->probe(Deadline::after(0)).ok(); }
  void close() { channel_.reset(); }
  void progress(int64_t time) {
    for (Deadline end = Deadline::after(time); !end.passed();) worker_->progress();
  }
  void tell() { write_all("", 1); }
  void hear() {
    char byte;
    read_all(&byte, 1);
  }

 private:
  static constexpr uint32_t kKey = 77;

  void write_all(const void* data, size_t size) {
    if (write(fd_, data, size) != static_cast<ssize_t>(size)) _exit(1);
  }
  void read_all(void* data, size_t size) {
    if (recv(fd_, data, size, MSG_WAITALL) != static_cast<ssize_t>(size)) _exit(1);
  }

  const int fd_;
  std::shared_ptr<UcxWorker> worker_;
  std::unique_ptr<UcxChannel> channel_;
};

class UcxHandshake : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!has_ucx()) GTEST_SKIP() << "no UCX here: libucp.so.0 of 1.13 or newer";
    ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds_), 0);
    ASSERT_TRUE(wait_until_single_threaded());
  }
  void TearDown() override {
    for (int fd : fds_) ::close(fd);
  }

  template <typename Body>
  pid_t run(int number, const Body& body) {
    pid_t child = fork();
    if (child != 0) return child;
    {
      OneEnd side(fds_[number]);
      side.connect();
      body(side);
    }
    _exit(0);
  }

 private:
  int fds_[2] = {-1, -1};
};

TEST_P(UcxHandshake, ComesAfterTheLinkWasClosed) {
  const bool dies = GetParam();
  constexpr int64_t kWhile = 20 * kMillisecond;
  for (int round = 0; round < 5; ++round) {
    const pid_t peer = run(0, [](OneEnd& side) {
      side.hear();
      side.probe();
      side.tell();
      pause();
    });
    const pid_t closing = run(1, [=](OneEnd& side) {
      side.close();
      side.tell();
      side.hear();
      side.progress(kWhile);
      if (dies) kill(peer, SIGKILL);
      side.progress(kWhile);
    });
    int status = 0;
    ASSERT_EQ(waitpid(closing, &status, 0), closing);
    kill(peer, SIGKILL);
    ASSERT_EQ(waitpid(peer, nullptr, 0), peer);
    ASSERT_EQ(status, 0) << "round " << round;
  }
}

INSTANTIATE_TEST_SUITE_P(APeer, UcxHandshake, ::testing::Bool(), [](const auto& test) {
  return std::string(test.param ? "that_dies" : "that_stands_still");
});

}  // namespace
}  // namespace conformance::ucx_handshake
