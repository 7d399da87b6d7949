// SPDX-License-Identifier: Apache-2.0
//
// Failures of operations by proxy: without a GPU or a thread, at deadlines, with peers that die or
// stop, by failed copies, and with the link.
#include <signal.h>

#include <cstdlib>

#include "conformance/gpu_stream.h"

namespace conformance::gpu_proxy_ends {
namespace {

constexpr size_t kLarge = 8'000'000;  // several staging buffers
constexpr size_t kSlow = 16'000'000;
constexpr int64_t kPatience = 20'000'000'000;

std::string text_of_error() { return oh_error_text(); }

// Between processes, with shared memory and without.
class GpuProxyEnds : public ::testing::TestWithParam<LinkKind> {};

// A peer without a GPU has no streams.
TEST_P(GpuProxyEnds, NotToAnEndpointForHostMemory) {
  LinkKind kind = GetParam();
  kind.device[1] = -1;
  kind.memory[1] = MemoryKind::kPrivate;
  run_pair(
      kind,
      [](Side& side) {
        side.connect();
        EXPECT_EQ(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT), OH_ERR_NOT_VIABLE);
        EXPECT_EQ(path_to(side.peer()), OH_PATH_NONE);
        side.sync();
        side.disconnect();
      },
      [](Side& side) {
        side.connect();
        EXPECT_EQ(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT), OH_ERR_NOT_VIABLE);
        side.sync();
        side.disconnect();
      });
}

// A thread must take the tickets.
TEST_P(GpuProxyEnds, NotWithoutAProgressThread) {
  LinkKind kind = GetParam();
  kind.env["ONEHOP_PROGRESS_THREAD"] = "off";
  auto both = [](Side& side) {
    side.connect();
    EXPECT_EQ(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT), OH_ERR_NOT_VIABLE);
    EXPECT_NE(text_of_error().find("ONEHOP_PROGRESS_THREAD"), std::string::npos) << text_of_error();
    EXPECT_NE(text_of_error().find(why_by_proxy(side.kind())), std::string::npos)
        << text_of_error();
    side.sync();
    side.disconnect();
  };
  run_pair(kind, both, both);
}

// In the middle of large messages in both directions.
TEST_P(GpuProxyEnds, APeersDeathInTheMiddleEndsEveryWait) {
  auto survivor = [](Side& side, Side& next) {
    StreamSide here(side);
    Buffer out = side.buffer(kMostBytes);
    Buffer in = side.buffer(kMostBytes);
    const auto begin = [&] {
      onehop::check(oh_group_begin());
      here.send(out, kMostBytes, 1);
      here.recv(in, kMostBytes, 1);
      onehop::check(oh_group_end());
    };
    for (int round = 0; round < 3; ++round) begin();
    here.finish();
    kill(side.other_process(), SIGKILL);
    // Until a call reports it; operations begun before end.
    while (status_of(begin) == OH_OK) here.finish();
    (void)oh_group_end();
    here.finish();
    EXPECT_EQ(status_of([&] { here.send(out, 1, 2); }), OH_ERR_PEER_LOST);
    side.drop_peer();
    // The same endpoint with another peer.
    onehop::Peer peer = side.endpoint().connect(next.hear());
    onehop::check(oh_peer_stream_recv(peer.get(), here.stream(), in.data(), in.size(), nullptr));
    here.finish();
    EXPECT_TRUE(in.holds(5, kMostBytes));
    EXPECT_EQ(oh_peer_async_error(peer.get()), OH_OK) << text_of_error();
    next.sync();
  };
  run_apart_with_victim(
      GetParam(), survivor,
      [](Side& side) {
        StreamSide here(side);
        Buffer out = side.buffer(kMostBytes);
        Buffer in = side.buffer(kMostBytes);
        while (true) {
          onehop::check(oh_group_begin());
          here.send(out, kMostBytes, 1);
          here.recv(in, kMostBytes, 1);
          onehop::check(oh_group_end());
          here.finish();
        }
      },
      [](Side& side) {
        StreamSide here(side);
        Buffer out = side.buffer(kMostBytes);
        out.fill(5);
        here.send(out, kMostBytes);
        here.finish();
        side.sync();
      });
}

void exchange_large(Side& side, StreamSide& here, Buffer& out, Buffer& in, int64_t timeout_ns) {
  auto options = onehop::detail::sized<oh_stream_options>();
  options.timeout_ns = timeout_ns;
  options.lane = 1;
  oh_peer* peer = side.peer().get();
  onehop::check(oh_group_begin());
  // A failed lane accepts no more.
  (void)oh_peer_stream_send(peer, here.stream(), out.data(), kMostBytes, &options);
  (void)oh_peer_stream_recv(peer, here.stream(), in.data(), kMostBytes, &options);
  onehop::check(oh_group_end());
  here.finish();
}

// After a wait ended at its deadline the caller owns the memory, even if the peer resumes.
TEST_P(GpuProxyEnds, NobodyWritesBehindADeadline) {
  run_apart_with_victim(
      GetParam(),
      [](Side& side, Side&) {
        StreamSide here(side);
        Buffer out = side.buffer(kMostBytes);
        Buffer in = side.buffer(kMostBytes);
        oh_peer* peer = side.peer().get();
        for (int round = 0; round < 3; ++round) exchange_large(side, here, out, in, kPatience);
        EXPECT_EQ(oh_peer_async_error(peer), OH_OK) << text_of_error();
        kill(side.other_process(), SIGSTOP);
        await_stopped(side.other_process());
        oh_status failure = OH_OK;
        while (failure == OH_OK) {
          exchange_large(side, here, out, in, 100'000'000);
          failure = oh_peer_async_error(peer);
        }
        EXPECT_EQ(failure, OH_ERR_TIMEOUT) << text_of_error();
        in.poison();
        side.tell_number(1);
        kill(side.other_process(), SIGCONT);
        onehop::check(oh_peer_reset_lane(peer, 1, kPatience));
        side.sync();
        EXPECT_TRUE(in.bytes() == onehop::Bytes(kMostBytes, kPoison));
        exchange_large(side, here, out, in, kPatience);
        EXPECT_TRUE(in.holds(8, kMostBytes));
        side.sync();
      },
      [](Side& side) {
        StreamSide here(side);
        Buffer out = side.buffer(kMostBytes);
        Buffer in = side.buffer(kMostBytes);
        out.fill(8);
        // Operations that the reset does not end must end by themselves.
        while (!side.was_told()) exchange_large(side, here, out, in, 2'000'000'000);
        EXPECT_EQ(side.hear_number(), 1);
        // A local deadline may have failed the lane before.
        onehop::check(oh_peer_reset_lane(side.peer().get(), 1, kPatience));
        side.sync();
        exchange_large(side, here, out, in, kPatience);
        side.sync();
      },
      [](Side&) {});
}

// A stopped peer receives nothing: one signal more than there are places is abandoned, which is
// reported. The earlier ones arrive.
TEST_P(GpuProxyEnds, ASignalWithoutRoomIsTold) {
  constexpr int kPlaces = 4;
  LinkKind kind = GetParam();
  kind.env["ONEHOP_TIMEOUT"] = "3";
  kind.env["ONEHOP_EAGER_CREDIT"] = "0";
  run_apart_with_victim(
      kind,
      [](Side& side, Side&) {
        StreamSide here(side);
        oh_peer* peer = side.peer().get();
        onehop::check(oh_peer_warmup(peer, kPatience));
        side.sync();
        kill(side.other_process(), SIGSTOP);
        await_stopped(side.other_process());
        for (int i = 0; i <= kPlaces; ++i) {
          onehop::check(oh_peer_stream_signal(peer, here.stream(), 7, 1));
        }
        here.finish();
        EXPECT_TRUE(eventually([&] { return oh_peer_async_error(peer) == OH_ERR_TIMEOUT; }));
        EXPECT_NE(text_of_error().find("a signal"), std::string::npos) << text_of_error();
        kill(side.other_process(), SIGCONT);
        side.sync();
      },
      [](Side& side) {
        StreamSide here(side);
        onehop::check(oh_peer_warmup(side.peer().get(), kPatience));
        side.sync();
        // The peer may be stopped in the middle of this, for as long as a signal is retried.
        auto patient = onehop::detail::sized<oh_stream_options>();
        patient.timeout_ns = kPatience;
        onehop::check(
            oh_peer_stream_wait_signal(side.peer().get(), here.stream(), 7, kPlaces, &patient));
        here.finish();
        EXPECT_EQ(oh_peer_async_error(side.peer().get()), OH_OK) << text_of_error();
        side.sync();
      },
      [](Side&) {});
}

// The sender's engine is slow: the whole message takes 3 s. The receive ends at its deadline all
// the same, and its memory belongs to the caller at once; the sender gets an error.
TEST_P(GpuProxyEnds, ADeadlineEndsAReceiveInTheMidst) {
  if (std::getenv("REAL_GPUS")) GTEST_SKIP() << "needs the fake driver";
  run_streams(
      GetParam(),
      [](Side& side, StreamSide& here) {
        Buffer out = side.buffer(kSlow);
        out.fill(1);
        onehop::check(oh_peer_warmup(side.peer().get(), kPatience));
        side.sync();
        fake_driver().delay(100'000);  // per copy, and per word behind one
        here.send(out, kSlow, 1);
        here.finish();
        EXPECT_EQ(error_of(side), OH_ERR_TIMEOUT) << oh_error_text();
        fake_driver().delay(0);
        onehop::check(oh_peer_reset_lane(side.peer().get(), 1, kPatience));
        side.sync();
        side.sync();  // the peer has checked its memory
        exchange(side, here, 3, 1);
        here.end();
      },
      [](Side& side, StreamSide& here) {
        Buffer in = side.buffer(kSlow);
        oh_peer* peer = side.peer().get();
        onehop::check(oh_peer_warmup(peer, kPatience));
        const oh_stream_options hurried = within(1'000'000'000, 1);
        onehop::check(oh_peer_stream_recv(peer, here.stream(), in.data(), kSlow, &hurried));
        side.sync();
        here.finish();
        EXPECT_EQ(error_of(side), OH_ERR_TIMEOUT) << oh_error_text();
        in.poison();
        side.sync();
        EXPECT_TRUE(in.bytes() == onehop::Bytes(kSlow, kPoison));
        side.sync();
        exchange(side, here, 3, 1);
        here.end();
      });
}

// A failed copy is reported to the stream on the side where it failed; a reset makes the lane
// usable again.
TEST_P(GpuProxyEnds, ACopyThatFailsIsTold) {
  if (std::getenv("REAL_GPUS")) GTEST_SKIP() << "needs the fake driver";
  constexpr size_t kSize = 2'000'000;
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer buffer = side.buffer(kSize);
    oh_peer* peer = side.peer().get();
    onehop::check(oh_peer_warmup(peer, kPatience));
    for (const char* call : {"cuMemcpyAsync", "cuStreamWriteValue64_v2"}) {
      for (int fails : {0, 1}) {
        SCOPED_TRACE(std::string(call) + " fails at side " + std::to_string(fails));
        side.sync();
        if (side.number() == fails) fake_driver().fail(call, 1, 999);
        const oh_stream_options hurried = within(500'000'000, 2);
        onehop::check(
            side.number() == 0
                ? oh_peer_stream_send(peer, here.stream(), buffer.data(), kSize, &hurried)
                : oh_peer_stream_recv(peer, here.stream(), buffer.data(), kSize, &hurried));
        here.finish();
        const oh_status status = error_of(side);
        if (side.number() == fails) {
          EXPECT_TRUE(status == OH_ERR_SYSTEM || status == OH_ERR_TIMEOUT) << status;
          fake_driver().clear_failures();
        }
        side.sync();
        if (side.number() == 0) onehop::check(oh_peer_reset_lane(peer, 2, kPatience));
        side.sync();
        (void)error_of(side);  // the error of operations that the reset has ended
        exchange(side, here, 5, 2);
      }
    }
    here.end();
  });
}

// With a receive, a send and a wait in flight when the link is closed.
TEST_P(GpuProxyEnds, ALinkGivesBackWhatItHad) {
  auto both = [](Side& side) {
    use_device(side.kind().driver, side.kind().device[side.number()]);
    Open before{};
    for (int round = 0; round < 3; ++round) {
      if (round == 1) before = Open::settled();  // the process's permanent resources are allocated
      {
        StreamSide here(side);
        StreamSide second(side, /*connects=*/false);
        StreamSide third(side, /*connects=*/false);
        Buffer out = side.buffer(kLarge);
        Buffer in = side.buffer(kLarge);
        oh_peer* peer = side.peer().get();
        exchange(side, here, out, in, 4, kLarge, 0);
        onehop::Region region = side.endpoint().register_memory(in.data(), kLarge);
        side.tell(region.descriptor());
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        onehop::check(oh_peer_stream_put(peer, here.stream(), out.data(), remote.get(), 0, kLarge));
        onehop::check(oh_peer_stream_signal(peer, here.stream(), 0, 1));
        onehop::check(oh_peer_stream_wait_signal(peer, here.stream(), 0, 1, nullptr));
        here.finish();
        EXPECT_TRUE(in.holds(4 + static_cast<uint64_t>(1 - side.number()), kLarge));
        // Side 0 sends and side 1 receives, but not matching messages.
        here.send(out, kLarge, side.number() == 0 ? 1 : 2);
        second.recv(in, kLarge, side.number() == 0 ? 3 : 4);
        onehop::check(oh_peer_stream_wait_signal(peer, third.stream(), 1, 1, nullptr));
        side.sync();
        side.disconnect();
        here.finish();
        second.finish();
        third.finish();
      }
      side.sync();
    }
    EXPECT_TRUE(comes_back_to(before));
  };
  run_apart(GetParam(), both, both);
}

// The graph outlives the link. The host answers no ticket any more, so one replay more than there
// are places finds none free.
TEST_P(GpuProxyEnds, AnAtomicOperationAfterTheLinkFindsZero) {
  constexpr int kPlaces = 4;
  run_streams(
      GetParam(),
      [](Side& side, StreamSide& here) {
        Buffer found = side.buffer(sizeof(uint64_t));
        auto* before = reinterpret_cast<uint64_t*>(found.data());
        void* graph = nullptr;
        {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          onehop::check(oh_peer_warmup(side.peer().get(), kPatience));
          graph = capture_graph(here.stream(), [&] {
            onehop::check(oh_peer_stream_fetch_add(side.peer().get(), here.stream(), remote.get(),
                                                   0, 1, before));
          });
        }
        side.sync();
        side.drop_peer();
        for (int replay = 0; replay <= kPlaces; ++replay) {
          uint64_t word = 77;
          write_device(before, &word, sizeof(word));
          launch_graph(graph, here.stream());
          here.finish();
          read_device(&word, before, sizeof(word));
          EXPECT_EQ(word, 0u) << "replay " << replay;
        }
        destroy_graph(graph);
        side.sync();
      },
      [](Side& side, StreamSide&) {
        uint64_t word = 1;
        onehop::Region region = side.endpoint().register_memory(&word, sizeof(word));
        side.tell(region.descriptor());
        onehop::check(oh_peer_warmup(side.peer().get(), kPatience));
        side.sync();
        side.sync();
        EXPECT_EQ(word, 1u);
      });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuProxyEnds, ::testing::ValuesIn(apart_by_proxy()), name_of);

}  // namespace
}  // namespace conformance::gpu_proxy_ends
