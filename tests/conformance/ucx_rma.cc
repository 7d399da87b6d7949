// SPDX-License-Identifier: Apache-2.0
//
// Regions and peers that go away during UCX's remote memory access. None dies: where UCX emulates
// the access, a death takes the other side with it (docs/transports/ucx.md).
#include <thread>

#include "capi/handles.h"
#include "conformance/faults.h"

namespace conformance::ucx_rma {
namespace {

class UcxRma : public Faults {
 protected:
  static void expect_untouched(Buffer& buffer) {
    ASSERT_TRUE(buffer.is_poisoned()) << "a region that was deregistered";
  }
  // The watcher's thread may be writing it for the peer, which is correct.
  __attribute__((no_sanitize("thread"))) static uint8_t first_byte(const uint8_t* of) {
    return *static_cast<const volatile uint8_t*>(of);
  }
  // Bytes in flight still arrive: until none has for a while.
  static void progress_until_quiet(Side& side) {
    for (int quiet = 0; quiet < 2000; ++quiet) {
      if (side.endpoint().get()->endpoint->progress()) quiet = 0;
      std::this_thread::yield();
    }
  }
};

TEST_P(UcxRma, ARegionIsDeregisteredInTheMiddle) {
  run(
      [&](Side& side) {
        Buffer buffer = side.buffer(kLarge);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        while (first_byte(buffer.data()) == 0) side.endpoint().progress();
        region.deregister(20s);
        buffer.poison();
        side.hear_number();
        progress_until_quiet(side);
        expect_untouched(buffer);
        // The link continues.
        onehop::Region again = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(again.descriptor());
        side.peer().wait_signal(1, 1, 20s);
        EXPECT_TRUE(buffer.holds(2, buffer.size()));
      },
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(kLarge);
        buffer.fill(1);
        buffer.data()[0] = 1;
        oh_status status = OH_OK;
        while (status == OH_OK) {
          status = status_of([&] { side.peer().put(buffer.data(), remote, 0, kLarge).wait(20s); });
        }
        EXPECT_EQ(status, OH_ERR_RETIRED);
        side.tell_number(0);
        onehop::RemoteRegion again = side.peer().attach(side.hear());
        buffer.fill(2);
        onehop::Request put = side.peer().put(buffer.data(), again, 0, kLarge);
        side.peer().signal(1);
        put.wait(20s);
      });
}

// Operations that UCX has at the deadline are in doubt until the owner continues; those it does not
// have yet are not sent.
TEST_P(UcxRma, AnOwnerStopsInTheMiddle) {
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(kLarge);
        buffer.fill(1);
        side.peer().put(buffer.data(), remote, 0, 1).wait(20s);  // the key has arrived
        trap().strike(side.other_process(), SIGSTOP);
        await_stopped(side.other_process());
        Buffer answer = side.buffer(1 << 20);
        onehop::Request get = side.peer().get(answer.data(), remote, 0, answer.size());
        EXPECT_EQ(status_of([&] { get.wait(20ms); }), OH_ERR_IN_DOUBT);
        onehop::Request put = side.peer().put(buffer.data(), remote, 0, kLarge);
        side.peer().signal(2);
        EXPECT_EQ(status_of([&] { put.wait(50ms); }), OH_ERR_IN_DOUBT);
        // There is no room for it.
        onehop::Request waiting = side.peer().get(buffer.data(), remote, 0, kLarge);
        EXPECT_EQ(status_of([&] { waiting.wait(20ms); }), OH_ERR_TIMEOUT);
        EXPECT_TRUE(waiting.buffer_released());
        EXPECT_FALSE(put.buffer_released());
        EXPECT_FALSE(get.buffer_released());
        kill(side.other_process(), SIGCONT);
        while (!put.buffer_released() || !get.buffer_released()) side.endpoint().progress();
        buffer.fill(2);
        onehop::Request again = side.peer().put(buffer.data(), remote, 0, kLarge);
        side.peer().signal(1);
        again.wait(20s);
        side.tell_number(0);
      },
      [&](Side& side) {
        Buffer buffer = side.buffer(kLarge);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        side.peer().wait_signal(2, 1, 40s);  // after the put that was given up
        side.peer().wait_signal(1, 1, 40s);
        EXPECT_TRUE(buffer.holds(2, buffer.size()));
        side.hear_number();
      });
}

// A missing region has no key; a repeated request breaks the protocol.
TEST_P(UcxRma, KeysOfRegionsThatAreNotThere) {
  run(
      [&](Side& side) {
        oh::Peer& peer = *side.peer().get()->peer;
        auto state_of = [&](const oh::RemoteTarget& target) {
          oh::LinkGuard guard(peer.link());
          return peer.operations().one_sided().keys().find(target.index, target.version)->state;
        };
        oh::RemoteTarget target;
        target.index = 5;
        target.version = 77;
        peer.operations().one_sided().attach_key(target);
        while (state_of(target) == oh::RemoteKey::State::kAsked) side.endpoint().progress();
        EXPECT_EQ(state_of(target), oh::RemoteKey::State::kRefused);
        peer.operations().one_sided().detach_key(target);
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        uint64_t word = 1;
        side.peer().put(&word, remote, 0, sizeof(word)).wait(20s);
        {
          oh::LinkGuard guard(peer.link());
          oh::Frame frame;
          frame.type = oh::FrameType::kKeyWanted;
          frame.region = remote.get()->attached->target.index;
          frame.tag = remote.get()->attached->target.version;
          peer.link().send(frame);
        }
        EXPECT_EQ(status_of([&] { side.peer().wait_signal(1, 1, 20s); }), OH_ERR_PEER_LOST);
        side.sync();
      },
      [&](Side& side) {
        uint64_t word = 0;
        onehop::Region region = side.endpoint().register_memory(&word, sizeof(word));
        side.tell(region.descriptor());
        EXPECT_EQ(status_of([&] { side.peer().wait_signal(1, 1, 20s); }), OH_ERR_PROTOCOL);
        region.deregister(20s);
        EXPECT_EQ(word, 1u);
        side.sync();
      });
}

// UCX trusts a key's content, and gets no length. A key without bytes ends the link; a truncated
// one is not read beyond its end, though over shared memory UCX aborts at its zeros.
TEST_P(UcxRma, KeysThatAreCut) {
  std::vector<onehop::Bytes> keys = {{}, onehop::Bytes(8, 0xff)};
  if (GetParam().name.find("tcp") != std::string::npos) {
    keys.push_back(onehop::Bytes(8, 0xff));
    keys.back().push_back(0);
  }
  for (const onehop::Bytes& key : keys) {
    SCOPED_TRACE(key.size());
    run(
        [&](Side& side) {
          oh::Peer& peer = *side.peer().get()->peer;
          oh::RemoteTarget target;
          target.index = 5;
          target.version = 77;
          side.hear_number();
          peer.operations().one_sided().attach_key(target);
          side.tell_number(0);
          // The other side's own reply comes second.
          EXPECT_EQ(status_of([&] { side.peer().wait_signal(1, 1, 20s); }), OH_ERR_PROTOCOL);
          side.sync();
        },
        [&](Side& side) {
          oh::Link& link = side.peer().get()->peer->link();
          {
            oh::LinkGuard guard(link);
            side.tell_number(0);
            side.hear_number();
            oh::Frame frame;
            frame.type = oh::FrameType::kKey;
            frame.region = 5;
            frame.tag = 77;
            frame.payload = key.data();
            frame.payload_size = key.size();
            EXPECT_TRUE(link.push(frame));
          }
          EXPECT_EQ(status_of([&] { side.peer().wait_signal(1, 1, 20s); }), OH_ERR_PEER_LOST);
          side.sync();
        });
  }
}

// One peer is stopped and has a key: the others are asked all the same, and the error names the
// stopped one.
TEST_P(UcxRma, AStoppedPeerIsNamedAndOthersLeave) {
  if (!has_ucx()) GTEST_SKIP() << "no UCX here: libucp.so.0 of 1.13 or newer";
  auto initiator = [](Side& side, bool stops) {
    side.connect();
    {
      onehop::RemoteRegion remote = side.peer().attach(side.hear());
      uint64_t word = 1;
      side.peer().put(&word, remote, 0, sizeof(word)).wait(20s);
      side.tell_number(0);
      side.hear_number();
      const oh_status status =
          status_of([&] { side.peer().put(&word, remote, 0, sizeof(word)).wait(20s); });
      // It may continue before it receives the request to leave; the memory is kept for that.
      EXPECT_TRUE(status == OH_ERR_RETIRED || (stops && status == OH_OK)) << status;
      side.tell_number(0);
    }
    side.disconnect();
  };
  run_apart_with_victim(
      GetParam(),
      [&](Side& victim, Side& next) {
        victim.connect();
        {
          onehop::Peer healthy = victim.endpoint().connect(next.hear(), 20s);
          uint64_t word = 0;
          onehop::Region region = victim.endpoint().register_memory(&word, sizeof(word));
          for (Side* side : {&victim, &next}) side->tell(region.descriptor());
          for (Side* side : {&victim, &next}) side->hear_number();
          kill(victim.other_process(), SIGSTOP);
          await_stopped(victim.other_process());
          std::string why;
          try {
            region.deregister(300ms);
          } catch (const onehop::Error& failure) {
            why = failure.what();
          }
          EXPECT_NE(why.find(victim.peer().info().label), std::string::npos) << why;
          next.tell_number(0);
          next.hear_number();
          kill(victim.other_process(), SIGCONT);
          victim.tell_number(0);
          victim.hear_number();
        }
        victim.disconnect();
      },
      [&](Side& side) { initiator(side, /*stops=*/true); },
      [&](Side& side) { initiator(side, /*stops=*/false); });
}

INSTANTIATE_TEST_SUITE_P(Rma, UcxRma, ::testing::ValuesIn(rma_kinds()), name_of);

}  // namespace
}  // namespace conformance::ucx_rma
