// SPDX-License-Identifier: Apache-2.0
//
// A connect is retried if the acceptor cuts its hello short.
#include <limits.h>
#include <poll.h>

#include "control/handshake.h"
#include "endpoint/endpoint.h"
#include "platform/os/os.h"
#include "unit/support.h"

namespace hello_retry_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

Deadline in_time() { return Deadline::after(20 * kSecond); }

class HelloRetryTest : public ::testing::Test {
 protected:
  HelloRetryTest() {
    endpoint_ = *Endpoint::create(unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"},
                                                     {"ONEHOP_SOCKET_DIR", folder_.path()}}),
                                  {});
    address_ = endpoint_->own_address();
    // Marks the address as another process's. Its real socket is the path; the abstract name, tried
    // first, belongs to the socket that turns callers away.
    address_.process = *random_id();
    address_.unix_name = "onehop-unit-" + id_text(*random_id());
  }
  ~HelloRetryTest() override { endpoint_->close(); }

  // Turns away `count` connections, with or without a message, and closes. Returns the listening
  // socket.
  int turn_away(int count, bool tell) {
    listening_ = std::move(*listen_on(SocketAddress::unix_abstract(address_.unix_name)));
    const int listening = listening_.get();
    threads_.start([this, count, tell] {
      for (; turned_away_ < count; ++turned_away_) {
        if (!wait_ready(listening_.get(), POLLIN, in_time(), "accepting").ok()) break;
        UniqueFd caller(os().accept(listening_.get()));
        if (!caller.valid()) break;
        if (!tell) continue;
        MessageSocket socket(std::move(caller), 1 << 20);
        (void)socket
            .send(static_cast<uint8_t>(Hello::kRefuse),
                  encode_refusal(error(kComeAgain, "crowded")))
            .ok();
      }
      listening_.reset();
    });
    return listening;
  }
  Status connect(Deadline deadline) {
    return endpoint_->connect(address_.encode(), {}, deadline).status();
  }

  unit::TempDir folder_;
  std::shared_ptr<Endpoint> endpoint_;
  Address address_;
  UniqueFd listening_;
  std::atomic<int> turned_away_{0};
  unit::Threads threads_;
};

TEST_F(HelloRetryTest, WhoIsToldToComeAgainDoes) {
  turn_away(20, /*tell=*/true);
  EXPECT_TRUE(is_ok(connect(in_time())));
  threads_.join();
  EXPECT_EQ(turned_away_.load(), 20);
}

// As by an acceptor of another version, or when its message is lost.
TEST_F(HelloRetryTest, AHangUpIsTriedAgain) {
  turn_away(5, /*tell=*/false);
  EXPECT_TRUE(is_ok(connect(in_time())));
  threads_.join();
  EXPECT_EQ(turned_away_.load(), 5);
}

TEST_F(HelloRetryTest, WhoHangsUpOnEverybodyIsGivenUp) {
  turn_away(11, /*tell=*/false);
  EXPECT_TRUE(fails_with(connect(in_time()), OH_ERR_PEER_LOST));
  threads_.join();
}

TEST_F(HelloRetryTest, TheDeadlineEndsIt) {
  const int listening = turn_away(INT_MAX, /*tell=*/true);
  Status status = connect(Deadline::after(500 * kMillisecond));
  EXPECT_TRUE(fails_with(status, OH_ERR_TIMEOUT, "crowded"));
  os().shutdown(listening, SHUT_RDWR);  // ends the wait
  threads_.join();
  EXPECT_GT(turned_away_.load(), 1);
}

}  // namespace
}  // namespace hello_retry_test
