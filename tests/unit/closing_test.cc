// SPDX-License-Identifier: Apache-2.0
//
// Calls of the C API while another thread closes the endpoint, before it reaches the links.
#include <poll.h>
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/fault.h"
#include "capi/handles.h"
#include "onehop/endpoint.h"
#include "onehop/peer.h"
#include "onehop/stream.h"
#include "onehop/wait.h"
#include "unit/race.h"
#include "unit/support.h"

namespace closing_test {
namespace {

using namespace oh;
using unit::is_ok;

constexpr size_t kSize = 10'000;
constexpr uint64_t kTag = 3;

// Two linked endpoints. The second one receives, and is closed.
class Closing : public ::testing::Test, public unit::Race {
 protected:
  void SetUp() override {
    near_.endpoint = near_peer_.endpoint = make_endpoint();
    far_.endpoint = far_peer_.endpoint = make_endpoint();
    const Deadline soon = Deadline::after(10 * kSecond);
    Result<std::shared_ptr<Peer>> there =
        near_.endpoint->connect(far_.endpoint->own_address().encode(), {}, soon);
    ASSERT_TRUE(is_ok(there));
    near_peer_.peer = *there;
    Result<std::shared_ptr<Peer>> here = far_.endpoint->incoming().accept(soon);
    ASSERT_TRUE(is_ok(here));
    far_peer_.peer = *here;
    ASSERT_EQ(oh_peer_irecv(&far_peer_, bytes_.data(), kSize, kTag, nullptr, &receive_), OH_OK);
  }
  void TearDown() override {
    g_fault_hook.store(nullptr);
    oh_request_release(receive_);
    far_.endpoint->close();
    near_.endpoint->close();
  }

  static std::shared_ptr<Endpoint> make_endpoint() {
    return *Endpoint::create(
        unit::config_with({{"ONEHOP_LOG", "off"}, {"ONEHOP_INTERFACE", "127.0.0.1"}}), {});
  }

  // Closes the endpoint; `meanwhile` runs once the endpoint rejects new calls, before any request
  // has ended.
  void close_and(std::function<void()> meanwhile) {
    at("endpoint.close", std::move(meanwhile));
    oh_endpoint_close(&far_);
    EXPECT_TRUE(came_by());
  }
  // Starts a thread that waits while the endpoint is closed. Returns when it sleeps, or has
  // returned.
  void start_waiting(const std::function<oh_status()>& wait) {
    waiter_ = std::thread([this, wait] {
      waited_ = wait();
      returned_.store(true);
    });
    while (!returned_.load() && far_.endpoint->doorbell().sleepers.load() == 0) sched_yield();
  }
  oh_status end_of_wait() {
    waiter_.join();
    return waited_;
  }

  Bytes bytes_ = Bytes(kSize, 0xee);
  Bytes message_ = Bytes(kSize, 7);
  oh_endpoint near_;
  oh_endpoint far_;
  oh_peer near_peer_;
  oh_peer far_peer_;
  oh_request* receive_ = nullptr;
  std::atomic<bool> returned_{false};

 private:
  std::thread waiter_;
  oh_status waited_ = OH_OK;
};

TEST_F(Closing, AReceiveThatHasNotEndedKeepsItsBuffer) {
  close_and([&] {
    EXPECT_EQ(oh_request_buffer_released(receive_), 0);
    EXPECT_EQ(oh_request_test(receive_), OH_IN_PROGRESS);
    EXPECT_EQ(oh_request_buffer_released(receive_), 0);
  });
  EXPECT_EQ(oh_request_test(receive_), OH_ERR_CANCELLED);
  EXPECT_EQ(oh_request_buffer_released(receive_), 1);
}

TEST_F(Closing, AMessageThatComesBeforeTheEndIsReceived) {
  close_and([&] {
    ASSERT_EQ(oh_peer_send(&near_peer_, message_.data(), kSize, kTag, nullptr), OH_OK);
    EXPECT_EQ(oh_request_test(receive_), OH_OK);
    EXPECT_EQ(oh_request_buffer_released(receive_), 1);
  });
  EXPECT_EQ(oh_request_test(receive_), OH_OK);
  EXPECT_EQ(bytes_, message_);
}

TEST_F(Closing, AReceiveIsCancelledBeforeTheEnd) {
  close_and([&] {
    EXPECT_EQ(oh_request_cancel(receive_), OH_OK);
    EXPECT_EQ(oh_request_test(receive_), OH_ERR_CANCELLED);
  });
}

TEST_F(Closing, WhoWaitsLooksOnAtItsDeadline) {
  size_t index = 0;
  close_and([&] {
    EXPECT_EQ(oh_request_poll(receive_, 1), OH_IN_PROGRESS);
    EXPECT_EQ(oh_request_poll_all(&receive_, 1, 1), OH_IN_PROGRESS);
    EXPECT_EQ(oh_request_poll_any(&receive_, 1, 1, &index), OH_IN_PROGRESS);
  });
  EXPECT_EQ(oh_request_poll_any(&receive_, 1, 1, &index), OH_OK);
}

TEST_F(Closing, WhoBeginsToWaitHearsOfTheEnd) {
  close_and([&] {
    start_waiting([&] { return oh_request_wait(receive_, OH_TIMEOUT_NEVER); });
    EXPECT_FALSE(returned_.load());
  });
  EXPECT_EQ(end_of_wait(), OH_ERR_CANCELLED);
}

TEST_F(Closing, WhoBeginsToWaitForSeveralHearsOfTheEnd) {
  close_and([&] {
    start_waiting([&] { return oh_request_wait_all(&receive_, 1, OH_TIMEOUT_NEVER); });
    EXPECT_FALSE(returned_.load());
  });
  EXPECT_EQ(end_of_wait(), OH_ERR_CANCELLED);
}

TEST_F(Closing, AnEventLoopHearsOfTheEnd) {
  int descriptor = -1;
  ASSERT_EQ(oh_endpoint_ended_fd(&far_, &descriptor), OH_OK);
  close_and([&] { EXPECT_EQ(oh_request_arm_listed(receive_), OH_OK); });
  pollfd event{descriptor, POLLIN, 0};
  EXPECT_EQ(poll(&event, 1, 10'000), 1);
  oh_request* ended[2] = {};
  size_t count = 2;
  EXPECT_EQ(oh_endpoint_take_ended(&far_, ended, &count), OH_OK);
  EXPECT_EQ(count, 1u);
  EXPECT_EQ(ended[0], receive_);
}

// The caller may free the memory as soon as the call returns.
TEST_F(Closing, WhoClosesSecondComesBackWhenAllHasEnded) {
  std::thread second;
  std::atomic<bool> back{false};
  close_and([&] {
    second = std::thread([&] {
      oh_endpoint_close(&far_);
      EXPECT_EQ(oh_request_buffer_released(receive_), 1);
      back.store(true);
    });
    const Deadline chance = Deadline::after(100 * kMillisecond);
    while (!back.load() && !chance.passed()) sched_yield();
    EXPECT_FALSE(back.load());
  });
  second.join();
}

TEST_F(Closing, ARegionThatIsDeregisteredIsNotWrittenAnyMore) {
  oh_region* region = nullptr;
  ASSERT_EQ(oh_region_register(&far_, bytes_.data(), kSize, &region), OH_OK);
  Bytes descriptor = far_.endpoint->memory().export_region(*region->region);
  oh_remote_region* remote = nullptr;
  ASSERT_EQ(
      oh_peer_attach(&near_peer_, descriptor.data(), descriptor.size(), 10 * kSecond, &remote),
      OH_OK);
  close_and([&] {
    EXPECT_EQ(oh_region_deregister(region, 10 * kSecond), OH_ERR_CLOSED);
    EXPECT_EQ(oh_peer_put(&near_peer_, message_.data(), remote, 0, kSize, nullptr, nullptr),
              OH_ERR_RETIRED);
  });
  EXPECT_EQ(bytes_, Bytes(kSize, 0xee));
  EXPECT_EQ(oh_region_deregister(region, 10 * kSecond), OH_ERR_CLOSED);
  oh_remote_region_detach(remote);
  oh_region_release(region);
}

// Calls that a closed endpoint answers, too: in a child of fork() another thread's lock may be held
// for ever, and the endpoint's descriptors are closed.
TEST_F(Closing, AChildOfForkIsToldNothing) {
  oh_region* region = nullptr;
  ASSERT_EQ(oh_region_register(&far_, bytes_.data(), kSize, &region), OH_OK);
  const Bytes descriptor = far_.endpoint->memory().export_region(*region->region);
  oh_remote_region* remote = nullptr;
  ASSERT_EQ(
      oh_peer_attach(&near_peer_, descriptor.data(), descriptor.size(), 10 * kSecond, &remote),
      OH_OK);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    oh_peer_info info{};
    oh_peer_stats stats{};
    oh_path_row row{};
    oh_stream_info stream{};
    oh_pool_stats pool{};
    info.struct_size = sizeof(info);
    stats.struct_size = sizeof(stats);
    row.struct_size = sizeof(row);
    stream.struct_size = sizeof(stream);
    pool.struct_size = sizeof(pool);
    oh_request* ended = nullptr;
    size_t count = 1;
    EXPECT_EQ(oh_peer_get_info(&far_peer_, &info), OH_ERR_FORKED);
    EXPECT_EQ(oh_peer_get_stats(&far_peer_, &stats), OH_ERR_FORKED);
    EXPECT_EQ(oh_peer_get_path(&far_peer_, 0, &row), OH_ERR_FORKED);
    EXPECT_EQ(oh_peer_get_stream_info(&far_peer_, &stream), OH_ERR_FORKED);
    EXPECT_EQ(oh_endpoint_get_pool(&far_, OH_POOL_PIPELINE, &pool), OH_ERR_FORKED);
    EXPECT_EQ(oh_endpoint_take_ended(&far_, &ended, &count), OH_ERR_FORKED);
    oh_remote_memory memory{};
    EXPECT_EQ(oh_remote_region_device(remote, &memory), OH_ERR_FORKED);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  oh_remote_region_detach(remote);
  oh_region_release(region);
}

}  // namespace
}  // namespace closing_test
