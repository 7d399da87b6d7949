// SPDX-License-Identifier: Apache-2.0
//
// Puts and gets of device memory over links without shared memory: many with few buffers, held
// engines, failed calls, peers that stop or die in mid-transfer, and regions that are deregistered
// meanwhile.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "conformance/batches.h"
#include "conformance/fake_driver.h"
#include "conformance/faults.h"
#include "sanitizers.h"

namespace conformance::gpu_puts_between_hosts {
namespace {

constexpr size_t kSize = 4'000'000;  // several buffers

class GpuPutsBetweenHosts : public ::testing::TestWithParam<oh_path> {
 protected:
  LinkKind kind() const {
    LinkKind kind = between_hosts(GetParam(), between_gpus(MemoryKind::kMalloc));
    kind.env["ONEHOP_PROGRESS_THREAD"] = "on";
    return kind;
  }
};

// `count` blocks of `length` bytes, evenly spaced.
oh_batch blocks(Buffer& buffer, size_t count, uint64_t length) {
  oh_batch batch = batch_of(buffer);
  batch.count = count;
  batch.length = length;
  batch.local_stride = batch.remote_stride = length + 100;
  return batch;
}

onehop::Request begin(Side& side, bool put, Buffer& buffer, onehop::RemoteRegion& remote) {
  return put ? side.peer().put(buffer.data(), remote, 0, buffer.size())
             : side.peer().get(buffer.data(), remote, 0, buffer.size());
}

// Both sides put into one half of the other's memory and get from the other half, in batches and
// single blocks, all at once, with one buffer for each direction.
TEST_P(GpuPutsBetweenHosts, ManyThroughOneBuffer) {
  LinkKind small = kind();
  small.env["ONEHOP_STAGING_BUFFER"] = "4096";
  small.env["ONEHOP_STAGING_BUFFERS"] = "1";
  constexpr size_t kLength = 2900;
  const size_t count = kSanitized ? 50 : 500;
  Role role = [&](Side& side) {
    const auto mine = static_cast<uint64_t>(side.number());
    const size_t half = count * (kLength + 100);
    Buffer memory = side.buffer(2 * half);
    memory.fill(mine);
    onehop::Region region = side.endpoint().register_memory(memory.data(), memory.size());
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    Buffer out = side.buffer(half);
    Buffer in = side.buffer(half);
    out.fill(10 + mine);
    in.poison();
    side.sync();
    std::vector<onehop::Request> requests;
    oh_batch put = blocks(out, count, kLength);
    oh_batch get = blocks(in, count, kLength);
    get.remote_base = half;
    requests.push_back(side.peer().put_batch(remote, put));
    requests.push_back(side.peer().get_batch(remote, get));
    for (size_t i = 0; i < 20; ++i) {
      const size_t at = i * (kLength + 100);
      requests.push_back(side.peer().put(out.data() + at, remote, at, kLength));
      requests.push_back(side.peer().get(in.data() + at, remote, half + at, kLength));
    }
    for (onehop::Request& request : requests) EXPECT_EQ(request.wait(60s).path, GetParam());
    side.sync();
    onehop::Bytes there = memory.bytes();
    there.resize(half);
    const onehop::Bytes put_here = pattern(10 + 1 - mine, half);
    const onehop::Bytes theirs = pattern(1 - mine, 2 * half);
    onehop::Bytes expected = pattern(mine, half);
    onehop::Bytes expected_here(half, 0xee);
    for (size_t at = 0; at < half; at += kLength + 100) {
      const size_t length = std::min(kLength, half - at);
      std::copy_n(&put_here[at], length, &expected[at]);
      std::copy_n(&theirs[half + at], length, &expected_here[at]);
    }
    ASSERT_TRUE(there == expected);
    ASSERT_TRUE(in.bytes() == expected_here);
    side.sync();
  };
  run_pair(small, role, role);
}

// A deadline while the engine of either side is held: TIMEOUT or IN_DOUBT, and the buffer is
// released only when it cannot be accessed any more. Afterwards the link works as before.
TEST_P(GpuPutsBetweenHosts, ADeadlineWhileAnEngineIsHeld) {
  for (bool put : {true, false}) {
    for (int held : {0, 1}) {
      SCOPED_TRACE((put ? "put, side " : "get, side ") + std::to_string(held) + " is held");
      run_pair(
          kind(),
          [&](Side& side) {
            Buffer mine = side.buffer(kSize);
            put ? mine.fill(1) : mine.poison();
            onehop::RemoteRegion remote = side.peer().attach(side.hear());
            if (held == 0) fake_driver().hold_all();
            onehop::Request request = begin(side, put, mine, remote);
            const oh_status status = status_of([&] { request.wait(50ms); });
            const bool free = request.buffer_released();
            EXPECT_TRUE(status == OH_ERR_TIMEOUT || status == OH_ERR_IN_DOUBT) << status;
            EXPECT_EQ(status == OH_ERR_TIMEOUT, free) << status;
            const onehop::Bytes other(kSize, 0xdd);
            if (free) {
              const auto address = reinterpret_cast<uint64_t>(mine.data());
              EXPECT_EQ(fake_driver().poke(address, other.data(), kSize), 0);
            }
            side.sync();
            fake_driver().release_all();
            EXPECT_TRUE(eventually([&] { return request.buffer_released(); }));
            side.sync();
            if (free && !put) {
              EXPECT_TRUE(mine.bytes() == other) << "a buffer that was given back";
            }
            mine.fill(3);
            side.peer().put(mine.data(), remote, 0, kSize).wait(20s);
            mine.poison();
            side.peer().get(mine.data(), remote, 0, kSize).wait(20s);
            EXPECT_TRUE(mine.holds(3, kSize));
            side.sync();
          },
          [&](Side& side) {
            Buffer target = side.buffer(kSize);
            target.fill(2);
            onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
            if (held == 1) fake_driver().hold_all();
            side.tell(region.descriptor());
            side.sync();
            fake_driver().release_all();
            side.sync();
            side.sync();
          });
    }
  }
}

// Each driver call of staged blocks fails once, on either side: the operation fails or has moved
// every byte, and the next one works.
TEST_P(GpuPutsBetweenHosts, CallsOfTheDriverFail) {
  constexpr const char* kCalls[] = {"cuLaunchKernel",          "cuMemcpyAsync",
                                    "cuStreamWriteValue64_v2", "cuStreamCreate",
                                    "cuMemHostRegister_v2",    "cuMemHostGetDevicePointer_v2"};
  constexpr size_t kCount = 300;
  constexpr size_t kLength = 9000;
  bool by_kernel = true;
  Role role = [&](Side& side) {
    Buffer memory = side.buffer(kCount * (kLength + 100));
    std::optional<onehop::Region> region;
    std::optional<onehop::RemoteRegion> remote;
    if (side.number() == 0) {
      remote.emplace(side.peer().attach(side.hear()));
    } else {
      region.emplace(side.endpoint().register_memory(memory.data(), memory.size()));
      side.tell(region->descriptor());
    }
    oh_batch batch = blocks(memory, kCount, kLength);
    auto move = [&](bool put, auto timeout) {
      return status_of([&] {
        (put ? side.peer().put_batch(*remote, batch) : side.peer().get_batch(*remote, batch))
            .wait(timeout);
      });
    };
    for (const char* call : kCalls) {
      if (!by_kernel && call != kCalls[1]) continue;
      for (int fails : {0, 1}) {
        for (bool put : {true, false}) {
          SCOPED_TRACE(std::string(call) + " at side " + std::to_string(fails) +
                       (put ? ", put" : ", get"));
          memory.fill(static_cast<uint64_t>(side.number()));
          const uint64_t calls = fake_driver().calls(call);
          if (fails == side.number()) fake_driver().fail(call, put ? 1 : 3, 999);
          side.sync();
          int64_t status = OH_OK;
          if (side.number() == 0) {
            status = move(put, 20s);
            side.tell_number(status);
          } else {
            status = side.hear_number();
          }
          side.sync();
          fake_driver().clear_failures();
          // The call that moves the bytes: it is always made, and has no alternative.
          const bool must_fail = call == (by_kernel ? kCalls[0] : kCalls[1]);
          if (must_fail && fails == side.number()) {
            EXPECT_GE(fake_driver().calls(call) - calls, put ? 1u : 3u);
          }
          EXPECT_TRUE(status == OH_ERR_SYSTEM || (status == OH_OK && !must_fail)) << status;
          const bool came = (side.number() == 0) != put;
          if (status == OH_OK && came) {
            const onehop::Bytes bytes = memory.bytes();
            const onehop::Bytes theirs = pattern(put ? 0 : 1, memory.size());
            for (size_t i = 0; i < kCount; ++i) {
              const auto at = static_cast<ptrdiff_t>(i * (kLength + 100));
              ASSERT_TRUE(std::equal(bytes.begin() + at, bytes.begin() + at + kLength,
                                     theirs.begin() + at));
            }
          }
          side.sync();
          if (side.number() == 0) {
            EXPECT_EQ(move(put, 20s), OH_OK);
          }
          side.sync();
        }
      }
    }
  };
  run_pair(kind(), role, role);
  by_kernel = false;
  LinkKind by_engine = kind();
  by_engine.env["ONEHOP_BATCH_KERNEL"] = "off";
  run_pair(by_engine, role, role);
}

// Cancellable operations: nothing arrives, and the peer drops them.
TEST_P(GpuPutsBetweenHosts, StoppedPeersAndCancels) {
  run_apart(
      kind(),
      [](Side& side) {
        side.connect();
        {
          Buffer mine = side.buffer(kSize);
          mine.fill(1);
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          side.sync();
          kill(side.other_process(), SIGSTOP);
          await_stopped(side.other_process());
          onehop::Request put = begin(side, true, mine, remote);
          onehop::Request get = begin(side, false, mine, remote);
          onehop::Request late = begin(side, true, mine, remote);
          EXPECT_EQ(status_of([&] { late.wait(50ms); }), OH_ERR_TIMEOUT);
          put.cancel();
          EXPECT_EQ(status_of([&] { put.wait(20s); }), OH_ERR_CANCELLED);
          EXPECT_EQ(status_of([&] { get.wait(50ms); }), OH_ERR_TIMEOUT);
          for (onehop::Request* request : {&put, &get, &late}) {
            EXPECT_TRUE(request->buffer_released());
          }
          mine.fill(2);
          kill(side.other_process(), SIGCONT);
          side.sync();
          EXPECT_TRUE(mine.holds(2, kSize)) << "a get that was given up has written";
          side.peer().put(mine.data(), remote, 0, kSize).wait(20s);
          side.sync();
        }
        side.disconnect();
      },
      [](Side& side) {
        side.connect();
        {
          Buffer target = side.buffer(kSize);
          target.poison();
          onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
          side.tell(region.descriptor());
          side.sync();
          side.sync();
          EXPECT_EQ(target.at(0), 0xee) << "a put that was given up has written";
          side.sync();
          EXPECT_TRUE(target.holds(2, kSize));
        }
        side.disconnect();
      });
}

// Whichever side dies, at any stage: the other side's operations end, its region can be
// deregistered, and its buffers are returned.
TEST_P(GpuPutsBetweenHosts, DeathsOnTheWay) {
  struct Way {
    bool owner_dies;
    bool put;
    int passes;
  };
  std::vector<Way> ways;
  for (bool owner_dies : {true, false}) {
    for (bool put : {true, false}) {
      const bool ucx = GetParam() == OH_PATH_UCX;
      for (int passes : {ucx ? 1 : 2, ucx ? 9 : 4}) ways.push_back({owner_dies, put, passes});
    }
  }
  if (kSanitized) ways = {{true, true, 2}, {false, false, 4}};
  void* shared =
      mmap(nullptr, sizeof(Trap), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  Trap::current() = static_cast<Trap*>(shared);
  for (const Way& way : ways) {
    SCOPED_TRACE(std::string(way.owner_dies ? "owner" : "initiator") +
                 (way.put ? ", put, pass " : ", get, pass ") + std::to_string(way.passes));
    new (&*Trap::current()) Trap{};
    run_apart_with_victim(
        kind(),
        [&](Side& victim, Side& next) {
          victim.connect();
          Buffer mine = victim.buffer(kSize);
          mine.fill(1);
          onehop::Region region = victim.endpoint().register_memory(mine.data(), kSize);
          victim.tell(region.descriptor());
          if (way.owner_dies) {
            Buffer from = victim.buffer(kSize);
            onehop::RemoteRegion remote = victim.peer().attach(victim.hear());
            oh_status status = OH_OK;
            while (status == OH_OK) {
              onehop::Request request = begin(victim, way.put, from, remote);
              status = status_of([&] { request.wait(20s); });
              EXPECT_TRUE(eventually([&] { return request.buffer_released(); }));
            }
            EXPECT_TRUE(status == OH_ERR_PEER_LOST || status == OH_ERR_IN_DOUBT) << status;
          } else {
            EXPECT_EQ(status_of([&] { victim.peer().wait_signal(0, 1, 20s); }), OH_ERR_PEER_LOST);
          }
          region.deregister(20s);
          onehop::Peer peer = victim.endpoint().connect(next.hear());
          mine.fill(5);
          peer.send(mine.data(), kSize, 1, 20s);
        },
        [&](Side& side) {
          side.connect();
          Buffer mine = side.buffer(kSize);
          onehop::Region region = side.endpoint().register_memory(mine.data(), kSize);
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          Trap::current()->set(way.passes, SIGKILL);
          side.tell(region.descriptor());
          while (way.owner_dies) pause();
          while (true) begin(side, way.put, mine, remote).wait(20s);
        },
        [](Side& side) {
          side.connect();
          Buffer mine = side.buffer(kSize);
          side.peer().recv(mine.data(), kSize, 1, 20s);
          EXPECT_TRUE(mine.holds(5, kSize));
        });
  }
  munmap(shared, sizeof(Trap));
}

// ---- Regions that are deregistered meanwhile

class GpuRegionsBetweenHosts : public GpuPutsBetweenHosts {};

// The owner's engine is held in the region: deregistering waits for it, and afterwards the region
// is not accessed.
TEST_P(GpuRegionsBetweenHosts, DeregisteringWaitsForTheEngine) {
  for (bool put : {true, false}) {
    SCOPED_TRACE(put ? "put" : "get");
    run_pair(
        kind(),
        [&](Side& side) {
          Buffer mine = side.buffer(kSize);
          put ? mine.fill(1) : mine.poison();
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          onehop::Request request = begin(side, put, mine, remote);
          EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_RETIRED);
          side.sync();
        },
        [&](Side& side) {
          Buffer target = side.buffer(kSize);
          target.fill(2);
          onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
          fake_driver().hold_all();
          const uint64_t copies = fake_driver().calls("cuMemcpyAsync");
          side.tell(region.descriptor());
          ASSERT_TRUE(eventually([&] { return fake_driver().calls("cuMemcpyAsync") > copies; }));
          EXPECT_EQ(status_of([&] { region.deregister(50ms); }), OH_ERR_TIMEOUT);
          fake_driver().release_all();
          region.deregister(20s);
          target.poison();
          side.sync();
          const onehop::Bytes bytes = target.bytes();
          EXPECT_TRUE(bytes == onehop::Bytes(kSize, 0xee)) << "touched after it was deregistered";
        });
  }
}

// The initiator's engine is held: the region, which is host memory, is not in use, and bytes that
// still arrive are dropped.
TEST_P(GpuRegionsBetweenHosts, DeregisteringHostMemoryWaitsForNobody) {
  run_pair(
      kind(),
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        mine.fill(1);
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        fake_driver().hold_all();
        const uint64_t copies = fake_driver().calls("cuMemcpyAsync");
        onehop::Request put = begin(side, true, mine, remote);
        // Only after the owner has accepted it.
        ASSERT_TRUE(eventually([&] {
          side.endpoint().progress();
          return fake_driver().calls("cuMemcpyAsync") > copies;
        }));
        side.sync();
        side.sync();
        fake_driver().release_all();
        EXPECT_EQ(status_of([&] { put.wait(20s); }), OH_ERR_RETIRED);
        // The link works as before.
        onehop::RemoteRegion again = side.peer().attach(side.hear());
        begin(side, true, mine, again).wait(20s);
        side.sync();
      },
      [](Side& side) {
        Buffer target(kSize, MemoryKind::kPrivate);
        onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
        side.tell(region.descriptor());
        side.sync();
        region.deregister(20s);
        target.poison();
        side.sync();
        Buffer other(kSize, MemoryKind::kPrivate);
        onehop::Region again = side.endpoint().register_memory(other.data(), kSize);
        side.tell(again.descriptor());
        side.sync();
        EXPECT_TRUE(other.holds(1, kSize));
        EXPECT_TRUE(target.bytes() == onehop::Bytes(kSize, 0xee)) << "touched afterwards";
      });
}

#if defined(OH_THREAD_SANITIZER)
constexpr oh_path kPaths[] = {OH_PATH_UCX};
#else
constexpr oh_path kPaths[] = {OH_PATH_UCX, OH_PATH_SOCKET};
#endif
std::string name_of_path(const ::testing::TestParamInfo<oh_path>& test) {
  return test.param == OH_PATH_UCX ? "ucx_tcp" : "no_segment";
}
INSTANTIATE_TEST_SUITE_P(Gpu, GpuPutsBetweenHosts, ::testing::ValuesIn(kPaths), name_of_path);
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRegionsBetweenHosts, ::testing::ValuesIn(kPaths), name_of_path);

}  // namespace
}  // namespace conformance::gpu_puts_between_hosts
