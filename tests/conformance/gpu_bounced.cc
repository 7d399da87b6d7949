// SPDX-License-Identifier: Apache-2.0
//
// Messages that arrive in host memory for receives in device memory: they are copied to the device
// after their arrival, when their sender has already completed. None may be lost in between.
#include <chrono>
#include <deque>

#include "conformance/fake_driver.h"

namespace conformance::gpu_bounced {
namespace {

using namespace std::chrono_literals;

// Inline in control messages, and eagerly in frames.
constexpr size_t kSizes[] = {8, 3000};

class GpuBounced : public ::testing::TestWithParam<LinkKind> {};

struct Posted {
  Buffer buffer;
  onehop::Request request;
};

Posted post(Side& side, size_t size) {
  Buffer buffer = side.buffer(size);
  onehop::Request request = side.peer().irecv(buffer.data(), size);
  return {std::move(buffer), std::move(request)};
}

// cancel() returns true only if the receive's message goes to the next receive.
TEST_P(GpuBounced, CancelledReceivesLoseNoMessage) {
  constexpr uint64_t kCount = 400;
  constexpr size_t kWindow = 4;
  for (const size_t size : kSizes) {
    run_pair(
        GetParam(),
        [&](Side& side) {
          std::deque<Posted> sends;
          for (uint64_t i = 0; i < kCount; ++i) {
            Buffer buffer = side.buffer(size);
            buffer.fill(i);
            onehop::Request request = side.peer().isend(buffer.data(), size);
            sends.push_back({std::move(buffer), std::move(request)});
            if (sends.size() < 16) continue;
            sends.front().request.wait(20s);
            sends.pop_front();
          }
          for (Posted& send : sends) send.request.wait(20s);
          side.sync();
        },
        [&](Side& side) {
          uint64_t arrived = 0;
          for (uint64_t round = 0; arrived < kCount; ++round) {
            std::vector<Posted> window;
            for (size_t i = 0; i < kWindow; ++i) window.push_back(post(side, size));
            // Each at a different stage of its message's arrival.
            for (uint64_t i = 0; i < round % 7; ++i) side.endpoint().progress();
            for (size_t i = round % 3; i < kWindow; i += 2) (void)window[i].request.cancel();
            for (Posted& each : window) {
              const oh_status status = status_of([&] { each.request.wait(2s); });
              if (status == OH_ERR_CANCELLED) continue;
              if (arrived == kCount) {
                EXPECT_EQ(status, OH_ERR_TIMEOUT);
                continue;
              }
              ASSERT_EQ(status, OH_OK) << "message " << arrived << " is lost: " << oh_error_text();
              EXPECT_TRUE(each.buffer.holds(arrived, size)) << "message " << arrived;
              ++arrived;
            }
          }
          side.sync();
        });
  }
}

TEST_P(GpuBounced, MessagesArriveThoughTheirSenderClosesAtOnce) {
  constexpr size_t kCount = 40;
  for (const size_t size : kSizes) {
    auto play = [&](Side& side) {
      for (int round = 0; round < 5; ++round) {
        side.connect();
        std::deque<Posted> all;
        if (side.number() == 0) {
          side.sync();  // the receives are posted
          for (size_t i = 0; i < kCount; ++i) {
            Buffer buffer = side.buffer(size);
            buffer.fill(i);
            onehop::Request request = side.peer().isend(buffer.data(), size);
            all.push_back({std::move(buffer), std::move(request)});
          }
          for (Posted& send : all) send.request.wait(20s);
          side.drop_peer();
          side.sync();
        } else {
          for (size_t i = 0; i < kCount; ++i) all.push_back(post(side, size));
          side.sync();
          side.sync();  // the peer has closed
          for (size_t i = 0; i < kCount; ++i) {
            EXPECT_EQ(status_of([&] { all[i].request.wait(20s); }), OH_OK)
                << "message " << i << ": " << oh_error_text();
            EXPECT_TRUE(all[i].buffer.holds(i, size)) << "message " << i;
          }
        }
        side.sync();
        side.disconnect();
      }
    };
    run_apart(GetParam(), play, play);
  }
}

std::vector<LinkKind> kinds() {
  LinkKind apart = between_gpus(MemoryKind::kMalloc);
  apart.name = "HostToMalloc";
  apart.memory[0] = MemoryKind::kPrivate;
  return {apart};
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuBounced, ::testing::ValuesIn(kinds()), name_of);

}  // namespace
}  // namespace conformance::gpu_bounced
