// SPDX-License-Identifier: Apache-2.0
//
// A process dies whose device memory others have mapped, or that has mapped theirs: the survivors
// release everything, and the next peer works.
#include <signal.h>

#include <thread>

#include "conformance/fake_driver.h"

namespace conformance::gpu_deaths {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 3'000'000;

class GpuDeaths : public ::testing::TestWithParam<MemoryKind> {
 protected:
  void exchange_and_die(bool survivor_sends);
};

class GpuDeathsInMessages : public ::testing::TestWithParam<LinkKind> {};

void pass(onehop::Peer& peer, Buffer& buffer, bool sends, uint64_t seed) {
  if (sends) {
    buffer.fill(seed);
    peer.send(buffer.data(), buffer.size(), 1, 20s);
  } else {
    buffer.poison();
    peer.recv(buffer.data(), buffer.size(), 1, 20s);
    EXPECT_TRUE(buffer.holds(seed, buffer.size())) << seed;
  }
}

// The peer after the victim.
void next_peer(Side& side) {
  side.connect();
  Buffer mine = side.buffer(kSize);
  pass(side.peer(), mine, false, 5);
}

// The victim's part of operations in flight: a receive and a send, polled for ever.
void exchange_for_ever(Side& side, bool held) {
  side.connect();
  Buffer mine = side.buffer(kSize);
  Buffer other = side.buffer(kSize);
  if (held) fake_driver().hold_all();
  onehop::Request in = side.peer().irecv(mine.data(), mine.size(), 1);
  onehop::Request out = side.peer().isend(other.data(), other.size(), 1);
  side.sync();
  while (true) (void)oh_request_poll((held ? out : in).get(), 1'000'000);
}

// The request of memory that the victim may have accessed ends; OK: it completed in time.
void expect_an_end(onehop::Request& request) {
  oh_status status = status_of([&] { request.wait(20s); });
  EXPECT_TRUE(status == OH_ERR_PEER_LOST || status == OH_ERR_IN_DOUBT || status == OH_OK) << status;
}

// Both buffers are released, and the endpoint works with the next peer.
void go_on(Side& victim, Side& next, onehop::Request& in, onehop::Request& out, Buffer& buffer) {
  EXPECT_TRUE(eventually([&] {
    victim.endpoint().progress();
    return in.buffer_released() && out.buffer_released();
  }));
  onehop::Peer peer = victim.endpoint().connect(next.hear());
  pass(peer, buffer, true, 5);
}

// Messages in both directions and a region, so that each side has mapped the other's memory; then
// the victim is killed while a receive waits for it.
void GpuDeaths::exchange_and_die(bool survivor_sends) {
  SharedDevices devices;
  LinkKind kind = between_gpus(GetParam());
  kind.env["FAKE_CUDA_STATE"] = devices.path();
  auto survivor = [&](Side& victim, Side& next) {
    use_device(kind.driver, kind.device[0]);
    // A first link, to itself, opens the process's permanent resources.
    {
      victim.connect();
      onehop::Peer self = victim.endpoint().connect(victim.endpoint().address());
      Buffer out = victim.buffer(kSize);
      Buffer in = victim.buffer(kSize);
      onehop::Request receive = self.irecv(in.data(), in.size(), 1);
      out.fill(9);
      self.send(out.data(), out.size(), 1, 20s);
      receive.wait(20s);
      EXPECT_TRUE(in.holds(9, kSize));
    }
    size_t free_before = free_device_memory();
    Open linked = Open::settled();
    {
      Buffer mine = victim.buffer(kSize);
      for (uint64_t seed = 0; seed < 2; ++seed) {
        pass(victim.peer(), mine, survivor_sends, seed);
        pass(victim.peer(), mine, !survivor_sends, seed);
      }
      onehop::Region region = victim.endpoint().register_memory(mine.data(), mine.size());
      victim.tell(region.descriptor());
      onehop::RemoteRegion remote = victim.peer().attach(victim.hear());
      victim.peer().send(nullptr, 0, 3, 20s);
      onehop::Request receive = victim.peer().irecv(mine.data(), mine.size(), 2);
      victim.sync();
      kill(victim.other_process(), SIGKILL);
      EXPECT_EQ(status_of([&] { receive.wait(20s); }), OH_ERR_PEER_LOST);
      EXPECT_TRUE(receive.buffer_released());
      EXPECT_EQ(status_of([&] { victim.peer().put(mine.data(), remote, 0, kSize).wait(20s); }),
                OH_ERR_PEER_LOST);
    }
    victim.drop_peer();
    EXPECT_TRUE(eventually([&] { return free_device_memory() >= free_before; }))
        << free_device_memory() << " bytes are free of " << free_before;
    // Nothing of the victim's memory stays mapped, even while the endpoint lives.
    EXPECT_TRUE(eventually([&] { return Open::now().driver.imports <= linked.driver.imports; }))
        << Open::now().text() << "; was " << linked.text();
    EXPECT_TRUE(eventually([&] { return Open::now().driver.mappings <= linked.driver.mappings; }))
        << Open::now().text() << "; was " << linked.text();
    // The same endpoint with another peer.
    {
      onehop::Peer peer = victim.endpoint().connect(next.hear());
      Buffer mine = victim.buffer(kSize);
      pass(peer, mine, true, 5);
      pass(peer, mine, false, 6);
      next.sync();
    }
    next.sync();
    victim.disconnect();
    Open after = Open::now();
    EXPECT_TRUE(eventually([&] {
      after = Open::now();
      return after.driver.streams + after.driver.events + after.driver.allocations +
                     after.driver.imports + after.driver.host_registrations +
                     after.driver.reservations + after.driver.mappings + after.driver.vmm_handles +
                     after.driver.pools ==
                 0 &&
             after.driver.contexts == 1;  // the test's
    })) << after.text();
  };
  auto partner = [&](Side& side, bool dies) {
    side.connect();
    Buffer mine = side.buffer(kSize);
    if (!dies) {
      pass(side.peer(), mine, false, 5);
      pass(side.peer(), mine, true, 6);
      side.sync();
      side.sync();
      side.disconnect();
      return;
    }
    for (uint64_t seed = 0; seed < 2; ++seed) {
      pass(side.peer(), mine, !survivor_sends, seed);
      pass(side.peer(), mine, survivor_sends, seed);
    }
    onehop::Region region = side.endpoint().register_memory(mine.data(), mine.size());
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    side.peer().recv(nullptr, 0, 3, 20s);
    side.sync();
    while (true) pause();
  };
  run_apart_with_victim(
      kind, survivor, [&](Side& side) { partner(side, true); },
      [&](Side& side) { partner(side, false); });
}

TEST_P(GpuDeaths, OfWhoSentFirst) { exchange_and_die(/*survivor_sends=*/false); }
TEST_P(GpuDeaths, OfWhoReceivedFirst) { exchange_and_die(/*survivor_sends=*/true); }

// While the local engine copies to the peer: the engine does not stop with the peer.
TEST_P(GpuDeathsInMessages, WhileOurEngineCopies) {
  auto survivor = [&](Side& victim, Side& next) {
    victim.connect();
    Buffer mine = victim.buffer(kSize);
    Buffer other = victim.buffer(kSize);
    fake_driver().hold_all();
    victim.sync();  // its receive is posted: the send claims it, and the local engine copies
    uint64_t copies = fake_driver().calls("cuMemcpyAsync");
    onehop::Request out = victim.peer().isend(other.data(), other.size(), 1);
    ASSERT_TRUE(eventually([&] {
      (void)oh_request_poll(out.get(), 1'000'000);
      return fake_driver().calls("cuMemcpyAsync") > copies;
    }));
    onehop::Request in = victim.peer().irecv(mine.data(), mine.size(), 1);
    kill(victim.other_process(), SIGKILL);
    expect_an_end(in);
    EXPECT_EQ(status_of([&] { out.wait(20s); }), OH_ERR_IN_DOUBT);
    EXPECT_FALSE(out.buffer_released());
    fake_driver().release_all();
    go_on(victim, next, in, out, mine);
  };
  run_apart_with_victim(
      GetParam(), survivor, [](Side& side) { exchange_for_ever(side, /*held=*/false); }, next_peer);
}

// While the peer's engine copies from and to local memory: it stops with the peer.
TEST_P(GpuDeathsInMessages, WhileItsEngineCopies) {
  auto survivor = [&](Side& victim, Side& next) {
    victim.connect();
    Buffer mine = victim.buffer(kSize);
    Buffer other = victim.buffer(kSize);
    onehop::Request in = victim.peer().irecv(mine.data(), mine.size(), 1);
    onehop::Request out = victim.peer().isend(other.data(), other.size(), 1);
    victim.sync();
    for (int i = 0; i < 20; ++i) (void)oh_request_poll(in.get(), 1'000'000);
    kill(victim.other_process(), SIGKILL);
    expect_an_end(in);
    expect_an_end(out);
    go_on(victim, next, in, out, mine);
  };
  run_apart_with_victim(
      GetParam(), survivor, [](Side& side) { exchange_for_ever(side, /*held=*/true); }, next_peer);
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuDeathsInMessages, ::testing::ValuesIn(device_message_kinds()),
                         [](const auto& test) { return test.param.name; });
INSTANTIATE_TEST_SUITE_P(Kinds, GpuDeaths, ::testing::ValuesIn(kDeviceKinds),
                         [](const auto& test) { return std::string(memory_name(test.param)); });

}  // namespace
}  // namespace conformance::gpu_deaths
