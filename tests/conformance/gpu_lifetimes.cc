// SPDX-License-Identifier: Apache-2.0
//
// The device memory that onehop holds, and its release: memory that is freed, memory that is reused
// at the same address, and everything after the endpoints are closed.
#include <set>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "conformance/fake_driver.h"

namespace conformance::gpu_lifetimes {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 3'000'000;

class GpuLifetimes : public ::testing::TestWithParam<MemoryKind> {
 protected:
  LinkKind kind() const { return between_gpus(GetParam()); }
  bool mappable() const {
    return GetParam() != MemoryKind::kAsync && GetParam() != MemoryKind::kManaged;
  }
};

void pass_on(Side& side, Buffer& buffer, bool sends, uint64_t seed) {
  if (sends) {
    buffer.fill(seed);
    side.peer().send(buffer.data(), buffer.size(), 1, 20s);
  } else {
    buffer.poison();
    side.peer().recv(buffer.data(), buffer.size(), 1, 20s);
    EXPECT_TRUE(buffer.holds(seed, buffer.size())) << "message " << seed;
  }
}

// Different memory at the same address: neither side may mistake it for the earlier memory.
TEST_P(GpuLifetimes, OtherMemoryAtTheSameAddress) {
  for (bool sender_frees : {true, false}) {
    SCOPED_TRACE(sender_frees ? "at the sender" : "at the receiver");
    Role role = [&](Side& side) {
      bool sends = side.number() == 0;
      bool frees = sends == sender_frees;
      Open before = Open::now();
      side.sync();
      std::set<uint8_t*> addresses;
      Buffer buffer = side.buffer(kSize);
      constexpr uint64_t kRounds = 12;
      for (uint64_t round = 0; round < kRounds; ++round) {
        if (frees && round > 0) {
          {
            Buffer gone = std::move(buffer);
          }
          buffer = side.buffer(kSize);
        }
        addresses.insert(buffer.data());
        pass_on(side, buffer, sends, round);
      }
      side.sync();
      if (frees) {
        EXPECT_LT(addresses.size(), kRounds) << "no address came again";
      } else if (mappable()) {
        // At most the last of twelve imports is left.
        EXPECT_TRUE(eventually([&] {
          Open now = Open::now();
          return now.driver.imports <= before.driver.imports + 1 &&
                 now.driver.reservations <= before.driver.reservations + 2;
        })) << Open::now().text()
            << "; was " << before.text();
      }
      side.sync();
    };
    run_pair(kind(), role, role);
  }
}

// Freed device memory becomes available although the peer had it mapped: within a second of an
// unannounced free, at once after deregistering.
TEST_P(GpuLifetimes, FreedMemoryComesBack) {
  SharedDevices devices;
  LinkKind link = kind();
  link.env["FAKE_CUDA_STATE"] = devices.path();
  auto await = [&](Side& side, size_t wanted, const char* what) {
    int64_t start = oh::now_ns();
    EXPECT_TRUE(eventually([&] { return free_device_memory() >= wanted; }))
        << what << ": " << free_device_memory() << " bytes are free of " << wanted;
    // A child's test properties are lost; a developer running the test alone can read this.
    if (std::getenv("ONEHOP_TEST_TIMES")) {
      fprintf(stderr, "%s, side %d: back after %.1f ms\n", what, side.number(),
              double(oh::now_ns() - start) / 1e6);
    }
  };
  Role role = [&](Side& side) {
    bool owner = side.number() == 0;
    {
      // Memory that a link keeps after its first such transfer.
      Buffer first = side.buffer(kSize);
      pass_on(side, first, owner, 1);
      pass_on(side, first, !owner, 2);
    }
    side.sync();
    eventually([last = free_device_memory()]() mutable {
      std::this_thread::sleep_for(300ms);  // three sweeps
      return free_device_memory() == std::exchange(last, free_device_memory());
    });
    for (bool sends : {owner, !owner}) {
      side.sync();
      size_t before = free_device_memory();
      Buffer mine = side.buffer(kSize);
      pass_on(side, mine, sends, 7);
      side.sync();
      if (owner) {
        {
          Buffer gone = std::move(mine);
        }
        await(side, before, sends ? "a sent buffer" : "a received buffer");
      }
      side.sync();
    }
    side.sync();
    size_t before = free_device_memory();
    Buffer mine = side.buffer(kSize);
    if (owner) {
      mine.fill(1);
      onehop::Region region = side.endpoint().register_memory(mine.data(), mine.size());
      side.tell(region.descriptor());
      side.hear_number();
      EXPECT_TRUE(mine.holds(2, kSize));
      region.deregister(20s);
      {
        Buffer gone = std::move(mine);
      }
      await(side, before, "a region");
    } else {
      onehop::RemoteRegion remote = side.peer().attach(side.hear());
      // A get and a put need the owner's progress if the memory cannot be mapped.
      side.peer().get(mine.data(), remote, 0, kSize).wait(20s);
      EXPECT_TRUE(mine.holds(1, kSize));
      mine.fill(2);
      side.peer().put(mine.data(), remote, 0, kSize).wait(20s);
      side.tell_number(0);
    }
    side.sync();
  };
  link.env["ONEHOP_PROGRESS_THREAD"] = "on";
  run_pair(link, role, role);
}

// All resources of the driver and the system are released when both endpoints are closed.
TEST_P(GpuLifetimes, NothingIsLeftBehind) {
  Role role = [&](Side& side) {
    use_device(side.kind().driver, side.kind().device[side.number()]);
    Open before{};
    // The first round allocates the process's permanent resources.
    for (int round = 0; round < 3; ++round) {
      if (round == 1) before = Open::settled();
      side.connect();
      {
        Buffer mine = side.buffer(kSize);
        for (uint64_t seed = 0; seed < 3; ++seed) {
          pass_on(side, mine, side.number() == 0, seed);
          pass_on(side, mine, side.number() == 1, seed);
        }
        void* stream = make_stream();
        onehop::Request send =
            side.peer().isend(mine.data(), mine.size(), 5, onehop::After::stream(stream));
        Buffer other = side.buffer(kSize);
        side.peer().recv(other.data(), other.size(), 5, 20s);
        send.wait(20s);
        EXPECT_TRUE(other.holds(2, kSize));
        side.sync();
        destroy_stream(stream);
        onehop::Region region = side.endpoint().register_memory(other.data(), other.size());
        side.tell(region.descriptor());
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        // Side 1's buffer is read and written while it waits for the final message.
        if (side.number() == 0) {
          side.peer().put(mine.data(), remote, 0, kSize).wait(20s);
          side.peer().get(mine.data(), remote, 0, kSize).wait(20s);
          EXPECT_TRUE(mine.holds(2, kSize));
          side.peer().send(nullptr, 0, 6, 20s);
        } else {
          side.peer().recv(nullptr, 0, 6, 20s);
        }
        side.sync();
      }
      side.sync();
      side.disconnect();
      side.sync();
    }
    EXPECT_TRUE(comes_back_to(before));
  };
  run_apart(kind(), role, role);
}

// The last holder of a peer, at times the watcher's thread, releases the peer's mappings.
TEST_P(GpuLifetimes, APeerThatOutlivesItsEndpointKeepsNothing) {
  Role role = [&](Side& side) {
    use_device(side.kind().driver, side.kind().device[side.number()]);
    Open before{};
    for (int round = 0; round < 2; ++round) {
      if (round == 1) before = Open::settled();
      side.connect();
      {
        Buffer mine = side.buffer(kSize);
        pass_on(side, mine, side.number() == 0, 1);
        pass_on(side, mine, side.number() == 1, 2);
        side.sync();
      }
      side.sync();
      round == 0 ? side.disconnect() : side.disconnect_endpoint_first();
      side.sync();
    }
    EXPECT_TRUE(comes_back_to(before));
  };
  run_apart(kind(), role, role);
}

// Hundreds of short-lived allocations do not accumulate on the side that maps them.
TEST_P(GpuLifetimes, ManyAllocationsDoNotPileUp) {
  constexpr int kMany = 300;
  constexpr size_t kSmall = 70'000;
  Role role = [&](Side& side) {
    bool sends = side.number() == 0;
    std::vector<Buffer> held;
    {
      // Memory that a link keeps after its first such transfer.
      Buffer first = side.buffer(kSmall);
      pass_on(side, first, sends, 1);
      side.sync();
    }
    Open before = Open::settled();
    side.sync();
    // Longer than a sweep, with many allocations at a time.
    for (int i = 0; i < kMany; ++i) {
      if (held.size() > 20) held.erase(held.begin());
      held.push_back(side.buffer(kSmall));
      pass_on(side, held.back(), sends, static_cast<uint64_t>(i));
    }
    side.sync();
    held.clear();
    side.sync();
    auto is_small = [&] {
      Open now = Open::now();
      return now.driver.imports <= before.driver.imports &&
             now.driver.reservations <= before.driver.reservations &&
             now.driver.mappings <= before.driver.mappings &&
             now.driver.vmm_handles <= before.driver.vmm_handles &&
             now.driver.pools <= before.driver.pools && now.descriptors <= before.descriptors + 4;
    };
    EXPECT_TRUE(eventually(is_small)) << Open::now().text() << "; was " << before.text();
    side.sync();
  };
  run_pair(kind(), role, role);
}

// Mappings are bounded: the least recently used one is released, and is created again when needed.
TEST_P(GpuLifetimes, FewMappingsServeManyAllocations) {
  constexpr size_t kSmall = 70'000;
  constexpr size_t kFew = 3;
  LinkKind link = kind();
  link.env["ONEHOP_IMPORT_CACHE"] = std::to_string(kFew);
  Role role = [&](Side& side) {
    bool sends = side.number() == 0;
    std::vector<Buffer> buffers;
    for (size_t i = 0; i < 3 * kFew; ++i) buffers.push_back(side.buffer(kSmall));
    onehop::Region region = side.endpoint().register_memory(buffers[0].data(), kSmall);
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    for (uint64_t round = 0; round < 3; ++round) {
      for (size_t i = 1; i < buffers.size(); ++i) pass_on(side, buffers[i], sends, 10 * round + i);
    }
    side.sync();
    // A region's memory stays mapped: it still exists for a put.
    if (sends) {
      buffers[1].fill(99);
      side.peer().put(buffers[1].data(), remote, 0, kSmall).wait(20s);
      side.tell_number(0);
    } else {
      // A put needs local progress if the memory cannot be mapped.
      while (!side.was_told()) side.endpoint().progress();
      side.hear_number();
      EXPECT_TRUE(buffers[0].holds(99, kSmall));
    }
    // Plus one for the region, and one for the slab.
    EXPECT_TRUE(eventually([&] { return Open::now().driver.imports <= kFew + 2; }))
        << Open::now().text();
    side.sync();
  };
  run_pair(link, role, role);
}

// trim() revokes exported memory, except under a region; all of it can be used again.
TEST_P(GpuLifetimes, TrimTakesBackWhatPeersWereShown) {
  Role role = [&](Side& side) {
    bool sends = side.number() == 0;
    Buffer shown = side.buffer(kSize);
    Buffer registered = side.buffer(kSize);
    onehop::Region region = side.endpoint().register_memory(registered.data(), kSize);
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    pass_on(side, shown, sends, 1);
    pass_on(side, shown, !sends, 2);
    side.sync();
    size_t before = Open::settled().driver.imports;
    side.sync();
    side.endpoint().trim();
    constexpr size_t kKept = 1;  // the region, or the slab
    EXPECT_TRUE(eventually([&] {
      side.endpoint().progress();
      return Open::now().driver.imports <= kKept;
    })) << Open::now().text()
        << "; before " << before;
    side.sync();
    pass_on(side, shown, sends, 3);
    pass_on(side, registered, !sends, 4);
    if (sends) {
      shown.fill(5);
      side.peer().put(shown.data(), remote, 0, kSize).wait(20s);
      side.tell_number(0);
    } else {
      while (!side.was_told()) side.endpoint().progress();
      side.hear_number();
      EXPECT_TRUE(registered.holds(5, kSize));
    }
    side.sync();
  };
  run_pair(kind(), role, role);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuLifetimes, ::testing::ValuesIn(kDeviceKinds),
                         [](const auto& test) { return std::string(memory_name(test.param)); });

}  // namespace
}  // namespace conformance::gpu_lifetimes
