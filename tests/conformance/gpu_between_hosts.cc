// SPDX-License-Identifier: Apache-2.0
//
// Device memory over links without shared memory: many messages with few buffers, and driver
// failures in between.
#include <array>

#include "conformance/fake_driver.h"
#include "sanitizers.h"

namespace conformance::gpu_between_hosts {
namespace {

using namespace std::chrono_literals;

class GpuBetweenHosts : public ::testing::TestWithParam<oh_path> {
 protected:
  LinkKind kind() const { return between_hosts(GetParam(), between_gpus(MemoryKind::kMalloc)); }
};

// More messages than buffers, from both sides, with receives in another order.
TEST_P(GpuBetweenHosts, ManyMessagesThroughOneBuffer) {
  LinkKind small = kind();
  small.env["ONEHOP_STAGING_BUFFER"] = "4096";
  small.env["ONEHOP_STAGING_BUFFERS"] = "1";
  // The waiting thread does all the work.
  small.env["ONEHOP_PROGRESS_THREAD"] = "off";
  const uint64_t count = kSanitized ? 100 : 300;
  constexpr size_t kSize = 5000;  // two buffers
  Role role = [&](Side& side) {
    std::vector<Buffer> out;
    std::vector<Buffer> in;
    std::vector<onehop::Request> requests;
    const uint64_t mine = static_cast<uint64_t>(side.number()) * 10'000;
    const uint64_t theirs = 10'000 - mine;
    for (uint64_t i = 0; i < count; ++i) {
      out.push_back(side.buffer(kSize));
      in.push_back(side.buffer(kSize));
      out[i].fill(mine + i);
      in[i].poison();
    }
    for (uint64_t i = 0; i < count; ++i) {
      requests.push_back(side.peer().isend(out[i].data(), kSize, i));
    }
    for (uint64_t i = count; i-- > 0;) {
      requests.push_back(side.peer().irecv(in[i].data(), kSize, i));
    }
    for (onehop::Request& request : requests) request.wait(60s);
    for (uint64_t i = 0; i < count; ++i) EXPECT_TRUE(in[i].holds(theirs + i, kSize)) << i;
    side.sync();
  };
  run_pair(small, role, role);
}

// A message without a receive, and one whose producer never ends, hold no buffer.
TEST_P(GpuBetweenHosts, WhoCannotGoOnHoldsNoBuffer) {
  LinkKind small = kind();
  small.env["ONEHOP_STAGING_BUFFERS"] = "1";
  run_pair(
      small,
      [](Side& side) {
        std::atomic<bool> go{false};
        void* stream = make_stream();
        block_stream(stream, &go);
        Buffer idle = side.buffer(100'000);
        Buffer pending = side.buffer(100'000);
        Buffer mine = side.buffer(3'000'000);
        idle.fill(1);
        pending.fill(2);
        mine.fill(3);
        onehop::Request first = side.peer().isend(idle.data(), idle.size(), 1);
        onehop::Request second =
            side.peer().isend(pending.data(), pending.size(), 2, onehop::After::stream(stream));
        side.peer().send(mine.data(), mine.size(), 3, 20s);
        EXPECT_FALSE(first.test());
        EXPECT_FALSE(second.test());
        side.sync();
        go = true;
        first.wait(20s);
        second.wait(20s);
        destroy_stream(stream);
        side.sync();
      },
      [](Side& side) {
        Buffer idle = side.buffer(100'000);
        Buffer pending = side.buffer(100'000);
        Buffer mine = side.buffer(3'000'000);
        onehop::Request second = side.peer().irecv(pending.data(), pending.size(), 2);
        side.peer().recv(mine.data(), mine.size(), 3, 20s);
        EXPECT_TRUE(mine.holds(3, mine.size()));
        side.sync();
        side.peer().recv(idle.data(), idle.size(), 1, 20s);
        second.wait(20s);
        EXPECT_TRUE(idle.holds(1, idle.size()));
        EXPECT_TRUE(pending.holds(2, pending.size()));
        side.sync();
      });
}

// A send that ends at its deadline in mid-transfer leaves the receive to the next send, and the
// link usable.
TEST_P(GpuBetweenHosts, ASendThatEndsInTheMidst) {
  constexpr size_t kSize = 4'000'000;
  run_pair(
      kind(),
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        mine.fill(1);
        fake_driver().delay(30'000);  // per copy
        onehop::Request first = side.peer().isend(mine.data(), kSize, 1);
        oh_status status = status_of([&] { first.wait(100ms); });
        EXPECT_TRUE(status == OH_ERR_TIMEOUT || status == OH_ERR_IN_DOUBT) << status;
        fake_driver().delay(0);
        EXPECT_TRUE(eventually([&] {
          side.endpoint().progress();
          return first.buffer_released();
        }));
        mine.fill(2);
        side.peer().send(mine.data(), kSize, 1, 20s);
        side.sync();
      },
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        mine.poison();
        side.peer().recv(mine.data(), kSize, 1, 20s);
        EXPECT_TRUE(mine.holds(2, kSize));
        side.sync();
      });
}

// The end of the link waits for a copy in flight: no buffer is left in doubt.
TEST_P(GpuBetweenHosts, ALinkThatEndsInTheMidst) {
  constexpr size_t kSize = 4'000'000;
  for (bool sender_closes : {true, false}) {
    run_pair(
        kind(),
        [&](Side& side) {
          Buffer mine = side.buffer(kSize);
          mine.fill(1);
          fake_driver().delay(30'000);  // per copy
          const uint64_t copies = fake_driver().calls("cuMemcpyAsync");
          onehop::Request request = side.peer().isend(mine.data(), kSize, 1);
          EXPECT_TRUE(eventually([&] {
            side.endpoint().progress();
            return fake_driver().calls("cuMemcpyAsync") > copies;
          }));
          side.tell_number(1);
          if (sender_closes) side.peer().close();
          EXPECT_EQ(status_of([&] { request.wait(20s); }),
                    sender_closes ? OH_ERR_CANCELLED : OH_ERR_PEER_LOST);
          fake_driver().delay(0);
        },
        [&](Side& side) {
          Buffer mine = side.buffer(kSize);
          onehop::Request request = side.peer().irecv(mine.data(), kSize, 1);
          side.hear_number();
          if (!sender_closes) side.peer().close();
          EXPECT_EQ(status_of([&] { request.wait(20s); }),
                    sender_closes ? OH_ERR_PEER_LOST : OH_ERR_CANCELLED);
        });
  }
}

// Each driver call of a staged message fails once, on either side: both sides get an error or the
// message arrives, and the next message arrives.
TEST_P(GpuBetweenHosts, CallsOfTheDriverFail) {
  constexpr size_t kSize = 2'000'000;
  constexpr std::array kCalls = {"cuMemcpyAsync", "cuStreamWriteValue64_v2", "cuMemHostRegister_v2",
                                 "cuMemHostGetDevicePointer_v2", "cuStreamCreate"};
  Role role = [&](Side& side) {
    Buffer mine = side.buffer(kSize);
    for (const char* call : kCalls) {
      for (int fails : {0, 1}) {
        for (uint64_t nth : {1, 3}) {
          SCOPED_TRACE(std::string(call) + ", call " + std::to_string(nth) + ", at side " +
                       std::to_string(fails));
          bool sends = side.number() == 0;
          sends ? mine.fill(nth) : mine.poison();
          side.sync();
          if (fails == side.number()) fake_driver().fail(call, nth, 999);
          oh_status status = status_of([&] {
            sends ? side.peer().send(mine.data(), kSize, 1, 300ms)
                  : void(side.peer().recv(mine.data(), kSize, 1, 300ms));
          });
          side.sync();
          fake_driver().clear_failures();
          if (status == OH_OK && !sends) {
            EXPECT_TRUE(mine.holds(nth, kSize));
          }
          if (fails == side.number()) {
            EXPECT_TRUE(status == OH_OK || status == OH_ERR_SYSTEM) << status;
          }
          side.sync();
          sends ? mine.fill(7) : mine.poison();
          sends ? side.peer().send(mine.data(), kSize, 2, 20s)
                : void(side.peer().recv(mine.data(), kSize, 2, 20s));
          if (!sends) {
            EXPECT_TRUE(mine.holds(7, kSize));
          }
        }
      }
    }
  };
  run_pair(kind(), role, role);
}

#if defined(OH_THREAD_SANITIZER)
constexpr oh_path kPaths[] = {OH_PATH_UCX};
#else
constexpr oh_path kPaths[] = {OH_PATH_UCX, OH_PATH_SOCKET};
#endif
INSTANTIATE_TEST_SUITE_P(Gpu, GpuBetweenHosts, ::testing::ValuesIn(kPaths), [](const auto& test) {
  return test.param == OH_PATH_UCX ? "ucx_tcp" : "no_segment";
});

}  // namespace
}  // namespace conformance::gpu_between_hosts
