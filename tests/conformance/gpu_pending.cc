// SPDX-License-Identifier: Apache-2.0
//
// Unfinished work: a transfer that waits for a stream or event of the application, and one whose
// engine is held. Memory is accessed neither too early nor after it was released.
#include <atomic>
#include <optional>
#include <thread>

#include "conformance/fake_driver.h"

namespace conformance::gpu_pending {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 1'000'000;

// For sides that make no progress for a while.
LinkKind with_progress(LinkKind kind) {
  kind.env["ONEHOP_PROGRESS_THREAD"] = "on";
  return kind;
}

class GpuPending : public ::testing::TestWithParam<LinkKind> {
 protected:
  LinkKind kind() const { return with_progress(GetParam()); }
};

void pass_beside(Side& side, uint64_t tag) {
  Buffer other = side.buffer(50'000);
  if (side.number() == 0) {
    other.fill(tag);
    side.peer().send(other.data(), other.size(), tag, 20s);
    side.peer().recv(other.data(), other.size(), tag, 20s);
    EXPECT_TRUE(other.holds(tag + 1, other.size()));
  } else {
    side.peer().recv(other.data(), other.size(), tag, 20s);
    EXPECT_TRUE(other.holds(tag, other.size()));
    other.fill(tag + 1);
    side.peer().send(other.data(), other.size(), tag, 20s);
  }
}

// Unfinished work writes the sender's bytes when isend is called.
TEST_P(GpuPending, ASendWaits) {
  run_pair(
      kind(),
      [&](Side& side) {
        for (bool by_event : {true, false}) {
          Buffer mine = side.buffer(kSize);
          Buffer fresh = side.buffer(kSize);
          mine.fill(1);
          fresh.fill(2);
          Blocked blocked;
          blocked.then_fill(mine, fresh);
          // Returns although the work is unfinished; a blocking call would never return.
          onehop::Request send = side.peer().isend(mine.data(), kSize, 1, blocked.after(by_event));
          EXPECT_FALSE(send.test());
          side.sync();
          pass_beside(side, 7);
          EXPECT_FALSE(send.test());
          EXPECT_FALSE(send.buffer_released());
          blocked.release();
          send.wait(20s);
          side.sync();
        }
      },
      [&](Side& side) {
        for (int i = 0; i < 2; ++i) {
          Buffer mine = side.buffer(kSize);
          mine.poison();
          onehop::Request receive = side.peer().irecv(mine.data(), kSize, 1);
          side.sync();
          pass_beside(side, 7);
          receive.wait(20s);
          EXPECT_TRUE(mine.holds(2, kSize));
          side.sync();
        }
      });
}

// Earlier work still reads the receiver's memory when irecv is called.
TEST_P(GpuPending, AReceiveIsLeftAlone) {
  run_pair(
      kind(),
      [&](Side& side) {
        for (int i = 0; i < 2; ++i) {
          Buffer mine = side.buffer(kSize);
          mine.fill(3);
          side.sync();
          onehop::Request send = side.peer().isend(mine.data(), kSize, 1);
          pass_beside(side, 7);
          send.wait(20s);
          side.sync();
        }
      },
      [&](Side& side) {
        for (bool by_event : {true, false}) {
          Buffer mine = side.buffer(kSize);
          Buffer copy = side.buffer(kSize);
          mine.fill(1);
          Blocked blocked;
          blocked.then_fill(copy, mine);
          onehop::Request receive =
              side.peer().irecv(mine.data(), kSize, 1, blocked.after(by_event));
          side.sync();
          pass_beside(side, 7);
          EXPECT_FALSE(receive.test());
          EXPECT_TRUE(mine.holds(1, kSize)) << "written while earlier work still uses it";
          blocked.release();
          receive.wait(20s);
          EXPECT_TRUE(mine.holds(3, kSize));
          EXPECT_TRUE(eventually([&] { return bool(copy.holds(1, kSize)); }));
          side.sync();
        }
      });
}

// The caller of a put waits, by contract; others continue.
TEST_P(GpuPending, APutWaits) {
  run_pair(
      kind(),
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        for (bool by_event : {true, false}) {
          Buffer mine = side.buffer(kSize);
          Buffer fresh = side.buffer(kSize);
          mine.fill(1);
          fresh.fill(2);
          Blocked blocked;
          blocked.then_fill(mine, fresh);
          onehop::After after = blocked.after(by_event);
          // With a deadline: nothing is moved, and the buffer is released.
          oh_put_options options = onehop::detail::with(30ms, nullptr, after);
          EXPECT_EQ(oh_peer_put(side.peer().get(), mine.data(), remote.get(), 0, kSize, &options,
                                nullptr),
                    OH_ERR_TIMEOUT);
          side.sync();
          side.sync();
          std::atomic<bool> ended{false};
          std::thread thread([&] {
            side.peer().put(mine.data(), remote, 0, kSize, nullptr, after).wait(20s);
            ended.store(true);
          });
          pass_beside(side, 7);
          EXPECT_FALSE(ended.load());
          blocked.release();
          thread.join();
          side.sync();
          side.sync();
        }
      },
      [&](Side& side) {
        Buffer target = side.buffer(kSize);
        target.poison();
        onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
        side.tell(region.descriptor());
        for (int i = 0; i < 2; ++i) {
          side.sync();
          EXPECT_EQ(target.at(0), 0xee);
          EXPECT_EQ(target.at(kSize - 1), 0xee);
          side.sync();
          pass_beside(side, 7);
          side.sync();
          EXPECT_TRUE(target.holds(2, kSize));
          target.poison();
          side.sync();
        }
      });
}

// A deadline while earlier work is pending: the operation ends at it, and its memory stays
// unchanged after that work has ended.
TEST_P(GpuPending, ADeadlineEndsIt) {
  Role role = [&](Side& side) {
    bool sends = side.number() == 0;
    for (int pends : {0, 1}) {
      Buffer mine = side.buffer(kSize);
      sends ? mine.fill(1) : mine.poison();
      Blocked blocked;
      onehop::After after = pends == side.number() ? blocked.after(false) : onehop::After{};
      std::optional<onehop::Request> request;
      if (!sends) request.emplace(side.peer().irecv(mine.data(), kSize, 1, after));
      side.sync();
      if (sends) request.emplace(side.peer().isend(mine.data(), kSize, 1, after));
      oh_status status = OH_OK;
      // The side with the pending work ends it; the other side gets an error, or gives up, too.
      if (pends == side.number()) {
        status = status_of([&] { request->wait(50ms); });
        EXPECT_TRUE(status == OH_ERR_TIMEOUT || status == OH_ERR_IN_DOUBT) << status;
        side.sync();
      } else {
        side.sync();
        status = status_of([&] { request->wait(50ms); });
        EXPECT_NE(status, OH_OK);
      }
      bool free = request->buffer_released();
      EXPECT_TRUE(status == OH_ERR_IN_DOUBT || free) << status;
      if (free && !sends) mine.poison();
      side.sync();
      blocked.release();
      EXPECT_TRUE(eventually([&] {
        side.endpoint().progress();
        return request->buffer_released();
      }));
      side.sync();
      if (free && !sends) {
        EXPECT_EQ(mine.at(0), 0xee) << "a buffer that was given back";
        EXPECT_EQ(mine.at(kSize - 1), 0xee) << "a buffer that was given back";
      }
      side.sync();
      pass_beside(side, 9);
    }
  };
  run_pair(kind(), role, role);
}

// The engine is held: TIMEOUT or IN_DOUBT, and the buffer is released only when it cannot be
// accessed any more.
TEST_P(GpuPending, ADeadlineWhileTheEngineIsHeld) {
  for (int held : {0, 1}) {
    SCOPED_TRACE("side " + std::to_string(held) + " is held");
    Role role = [&, held](Side& side) {
      bool sends = side.number() == 0;
      Buffer mine = side.buffer(kSize);
      sends ? mine.fill(1) : mine.poison();
      if (held == side.number()) fake_driver().hold_all();
      std::optional<onehop::Request> request;
      if (!sends) request.emplace(side.peer().irecv(mine.data(), kSize, 1));
      side.sync();
      if (sends) request.emplace(side.peer().isend(mine.data(), kSize, 1));
      oh_status status = status_of([&] { request->wait(60ms); });
      bool free = request->buffer_released();
      EXPECT_TRUE(status == OH_ERR_TIMEOUT || status == OH_ERR_IN_DOUBT || status == OH_OK)
          << status;
      EXPECT_TRUE(status == OH_ERR_IN_DOUBT || free) << status;
      side.sync();
      // The engine stays held: its later writes would be detected.
      onehop::Bytes other(kSize, 0xee);
      auto address = reinterpret_cast<uint64_t>(mine.data());
      if (free && status != OH_OK) {
        EXPECT_EQ(fake_driver().poke(address, other.data(), kSize), 0);
      }
      fake_driver().release_all();
      bool ended = eventually([&] {
        side.endpoint().progress();
        return request->buffer_released();
      });
      EXPECT_TRUE(ended) << "the buffer is never given back";
      side.sync();
      if (!sends && free && status != OH_OK) {
        EXPECT_EQ(mine.at(0), 0xee) << "a buffer that was given back";
        EXPECT_EQ(mine.at(kSize / 2), 0xee) << "a buffer that was given back";
        EXPECT_EQ(mine.at(kSize - 1), 0xee) << "a buffer that was given back";
      }
      if (!sends && status == OH_OK) {
        EXPECT_TRUE(mine.holds(1, kSize));
      }
      side.sync();
      pass_beside(side, 9);
    };
    run_pair(kind(), role, role);
  }
}

// A region's owner deregisters while a put's engine is held: it does not return successfully before
// the put has ended, and afterwards the memory is not accessed. Then it is registered again.
TEST_P(GpuPending, DeregisterWhileAPutIsInFlight) {
  run_pair(
      kind(),
      [&](Side& side) {
        Buffer mine = side.buffer(kSize);
        mine.fill(1);
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        fake_driver().hold_all();
        std::atomic<int> outcome{1};
        std::thread thread([&] {
          outcome = status_of([&] { side.peer().put(mine.data(), remote, 0, kSize).wait(20s); });
        });
        std::this_thread::sleep_for(30ms);
        side.sync();
        // The owner tries, with or without success.
        bool in_time = side.hear_number() == OH_OK;
        fake_driver().release_all();
        thread.join();
        EXPECT_TRUE(outcome == OH_OK || outcome == OH_ERR_RETIRED || outcome == OH_ERR_TIMEOUT)
            << outcome;
        EXPECT_TRUE(!in_time || outcome != OH_OK) << "gone before the put had ended";
        side.sync();
        EXPECT_EQ(status_of([&] { side.peer().put(mine.data(), remote, 0, kSize).wait(20s); }),
                  OH_ERR_RETIRED);
        onehop::RemoteRegion again = side.peer().attach(side.hear());
        mine.fill(2);
        side.peer().put(mine.data(), again, 0, kSize).wait(20s);
        side.sync();
      },
      [&](Side& side) {
        Buffer target = side.buffer(kSize);
        target.poison();
        onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
        side.tell(region.descriptor());
        side.sync();
        oh_status status = status_of([&] { region.deregister(50ms); });
        EXPECT_TRUE(status == OH_OK || status == OH_ERR_TIMEOUT) << status;
        if (status == OH_OK) target.poison();
        side.tell_number(status);
        if (status != OH_OK) {
          region.deregister(20s);
          target.poison();
        }
        side.sync();
        EXPECT_EQ(target.at(0), 0xee) << "touched after it was deregistered";
        EXPECT_EQ(target.at(kSize - 1), 0xee) << "touched after it was deregistered";
        onehop::Region fresh = side.endpoint().register_memory(target.data(), kSize);
        side.tell(fresh.descriptor());
        side.sync();
        EXPECT_TRUE(target.holds(2, kSize));
      });
}

// The same memory is registered again and sent from, while a message from it is in flight.
TEST_P(GpuPending, RegisteredAgainInFlight) {
  run_pair(
      kind(),
      [&](Side& side) {
        Buffer mine = side.buffer(kSize);
        mine.fill(1);
        onehop::Region first = side.endpoint().register_memory(mine.data(), kSize);
        fake_driver().hold_all();
        side.sync();
        onehop::Request send = side.peer().isend(mine.data(), kSize, 1);
        std::this_thread::sleep_for(10ms);
        (void)send.test();
        first.deregister(20s);
        onehop::Region second = side.endpoint().register_memory(mine.data(), kSize / 2);
        onehop::Request other = side.peer().isend(mine.data(), kSize, 2);
        fake_driver().release_all();
        send.wait(20s);
        other.wait(20s);
        side.tell(second.descriptor());
        side.sync();
      },
      [&](Side& side) {
        Buffer mine = side.buffer(kSize);
        Buffer beside = side.buffer(kSize);
        onehop::Request first = side.peer().irecv(mine.data(), kSize, 1);
        onehop::Request second = side.peer().irecv(beside.data(), kSize, 2);
        side.sync();
        first.wait(20s);
        second.wait(20s);
        EXPECT_TRUE(mine.holds(1, kSize));
        EXPECT_TRUE(beside.holds(1, kSize));
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        mine.poison();
        side.peer().get(mine.data(), remote, 0, kSize / 2).wait(20s);
        EXPECT_TRUE(mine.holds(1, kSize / 2));
        side.sync();
      });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuPending, ::testing::ValuesIn(device_message_kinds()),
                         [](const auto& test) { return test.param.name; });

// Host memory is not accessed before earlier work on it is done: the call waits for that.
TEST(GpuPendingHost, ACallEndsWhenItsEndpointIsClosed) {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.env["ONEHOP_TIMEOUT"] = "10";
  for (bool put : {false, true}) {
    SCOPED_TRACE(put ? "put" : "isend");
    run_pair(
        kind,
        [&](Side& side) {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          std::vector<uint8_t> host(1000);
          Buffer mine = side.buffer(kSize);
          Buffer fresh = side.buffer(kSize);
          Blocked blocked;
          blocked.then_fill(mine, fresh);
          const onehop::After after = blocked.after(/*by_event=*/true);
          const uint64_t asked = fake_driver().calls("cuEventQuery");
          oh_status status = OH_OK;
          std::thread caller([&] {
            status = status_of([&] {
              put ? side.peer().put(host.data(), remote, 0, host.size(), nullptr, after)
                  : side.peer().isend(host.data(), host.size(), 1, after);
            });
          });
          EXPECT_TRUE(eventually([&] { return fake_driver().calls("cuEventQuery") > asked + 10; }));
          oh_endpoint_close(side.endpoint().get());
          caller.join();
          EXPECT_EQ(status, OH_ERR_CLOSED);
        },
        [&](Side& side) {
          Buffer buffer = side.buffer(kSize);
          onehop::Region region = side.endpoint().register_memory(buffer.data(), kSize);
          side.tell(region.descriptor());
          EXPECT_EQ(status_of([&] { side.peer().recv(buffer.data(), kSize, 1, 20s); }),
                    OH_ERR_PEER_LOST);
        });
  }
}

}  // namespace
}  // namespace conformance::gpu_pending
