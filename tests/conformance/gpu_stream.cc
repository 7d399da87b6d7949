// SPDX-License-Identifier: Apache-2.0
//
// The stream domain: stream-ordered messages, groups, graphs, signals and puts.
#include <algorithm>
#include <chrono>
#include <cstdlib>

#include "conformance/fake_driver.h"
#include "conformance/gpu_stream.h"

namespace conformance::gpu_stream {
namespace {

using namespace std::chrono_literals;

// Sizes around the capacity of a line, a row, the ring of lane 0, and a chunk.
constexpr size_t kSizes[] = {0,     1,      7,      8,      9,      391,     392,       393,
                             1'100, 16'384, 65'535, 65'536, 65'537, 100'003, 1'048'576, 2'500'001};

class GpuStream : public ::testing::TestWithParam<LinkKind> {};

TEST_P(GpuStream, MessagesOfAllSizesInTheOrderOfAStream) {
  run_streams(
      GetParam(),
      [](Side& side, StreamSide& here) {
        Buffer buffer = side.buffer(kMostBytes);
        for (size_t size : kSizes) {
          buffer.fill(size);
          here.send(buffer, size);
          here.finish();
        }
        here.end();
      },
      [](Side& side, StreamSide& here) {
        Buffer buffer = side.buffer(kMostBytes);
        for (size_t size : kSizes) {
          buffer.poison();
          here.recv(buffer, kMostBytes);
          here.finish();
          EXPECT_TRUE(buffer.holds(size, size)) << size << " bytes";
          if (size < kMostBytes) {
            EXPECT_EQ(buffer.at(size), kPoison) << "behind " << size << " bytes";
          }
        }
        here.end();
      });
}

// All at once: the host does nothing in between.
TEST_P(GpuStream, ManyMessagesUnderWay) {
  constexpr int kRounds = 40;
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    std::vector<Buffer> out;
    std::vector<Buffer> in;
    for (int i = 0; i < kRounds; ++i) {
      out.push_back(side.buffer(1'000));
      in.push_back(side.buffer(1'000));
      out.back().fill(static_cast<uint64_t>(1'000 * side.number() + i));
      in.back().poison();
    }
    // Each side sends before it receives.
    for (int i = 0; i < kRounds; ++i) {
      here.send(out[static_cast<size_t>(i)], 1'000);
      here.recv(in[static_cast<size_t>(i)], 1'000);
    }
    here.finish();
    for (int i = 0; i < kRounds; ++i) {
      EXPECT_TRUE(in[static_cast<size_t>(i)].holds(
          static_cast<uint64_t>(1'000 * (1 - side.number()) + i), 1'000));
    }
    here.end();
  });
}

TEST_P(GpuStream, LanesWaitForNoneOfEachOther) {
  run_streams(
      GetParam(),
      [](Side& side, StreamSide& here) {
        Buffer first = side.buffer(3'000);
        Buffer second = side.buffer(3'000);
        first.fill(1);
        second.fill(2);
        here.send(first, 3'000, 3);
        here.send(second, 3'000, 15);
        here.finish();
        here.end();
      },
      [](Side& side, StreamSide& here) {
        Buffer first = side.buffer(3'000);
        Buffer second = side.buffer(3'000);
        here.recv(second, 3'000, 15);
        here.recv(first, 3'000, 3);
        here.finish();
        EXPECT_TRUE(first.holds(1, 3'000));
        EXPECT_TRUE(second.holds(2, 3'000));
        here.end();
      });
}

// More than any ring holds, in both directions at once, and two messages on one lane.
TEST_P(GpuStream, AGroupIsBegunAsOne) {
  constexpr size_t kSize = 300'000;
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    std::vector<Buffer> out;
    std::vector<Buffer> in;
    for (uint64_t i = 0; i < 3; ++i) {
      out.push_back(side.buffer(kSize));
      in.push_back(side.buffer(kSize));
      out.back().fill(10 * static_cast<uint64_t>(side.number()) + i);
      in.back().poison();
    }
    for (int round = 0; round < 3; ++round) {
      onehop::check(oh_group_begin());
      here.send(out[0], kSize);
      here.send(out[1], kSize);
      here.send(out[2], 100, 7);
      here.recv(in[2], 100, 7);
      here.recv(in[0], kSize);
      here.recv(in[1], kSize);
      onehop::check(oh_group_end());
      here.finish();
      const uint64_t seed = 10 * static_cast<uint64_t>(1 - side.number());
      EXPECT_TRUE(in[0].holds(seed, kSize));
      EXPECT_TRUE(in[1].holds(seed + 1, kSize));
      EXPECT_TRUE(in[2].holds(seed + 2, 100));
      for (Buffer& buffer : in) buffer.poison();
    }
    here.end();
  });
}

// The large message sets the blocks of a cluster for all operations of the launch.
TEST_P(GpuStream, SignalsBesideALargeMessage) {
  constexpr size_t kSize = 2'500'000;
  constexpr uint32_t kSlot = 3;
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(kSize);
    Buffer in = side.buffer(kSize);
    const oh_stream_options patient = within(20'000'000'000);
    for (uint64_t round = 0; round < 4; ++round) {
      out.fill(2 * round + static_cast<uint64_t>(side.number()));
      in.poison();
      onehop::check(oh_group_begin());
      here.send(out, kSize);
      onehop::check(oh_peer_stream_signal(side.peer().get(), here.stream(), kSlot, 1));
      onehop::check(
          oh_peer_stream_wait_signal(side.peer().get(), here.stream(), kSlot, 1, &patient));
      here.recv(in, kSize);
      onehop::check(oh_group_end());
      here.finish();
      EXPECT_TRUE(in.holds(2 * round + static_cast<uint64_t>(1 - side.number()), kSize));
    }
    here.end();
  });
}

// Calls on one lane are ordered whichever streams they use.
TEST_P(GpuStream, CallsFromSeveralStreamsFollowEachOther) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    StreamSide other(side, /*connects=*/false);
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    auto info = onehop::detail::sized<oh_stream_info>();
    onehop::check(oh_peer_get_stream_info(side.peer().get(), &info));
    EXPECT_EQ(info.path, stream_path(side.kind()));
    const size_t size = std::min<size_t>(50'000, info.stream_buffered);
    Buffer out = side.buffer(size);
    Buffer in = side.buffer(size);
    for (uint64_t round = 0; round < 6; ++round) {
      StreamSide& with = round % 2 == 0 ? here : other;
      out.fill(round);
      in.poison();
      with.send(out, size);
      (round % 3 == 0 ? other : here).recv(in, size);
      here.finish();
      other.finish();
      EXPECT_TRUE(in.holds(round, size));
    }
    here.end();
  });
}

// The bytes change from replay to replay, so that stale ones are detected.
TEST_P(GpuStream, GraphsAreReplayed) {
  constexpr size_t kSize = 2'000;
  constexpr size_t kLarge = 280'000;
  constexpr uint64_t kReplays = 300;
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(kLarge);
    Buffer in = side.buffer(kLarge);
    Buffer small_out = side.buffer(kSize);
    Buffer small_in = side.buffer(kSize);
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    void* graph = capture_graph(here.stream(), [&] {
      here.send(small_out, kSize);
      here.recv(small_in, kSize);
      onehop::check(oh_group_begin());
      here.send(out, kLarge, 2);
      here.recv(in, kLarge, 2);
      onehop::check(oh_group_end());
    });
    for (uint64_t replay = 0; replay < kReplays; ++replay) {
      const bool looks = replay % 20 == 0;
      if (looks) {
        here.finish();
        small_out.fill(2 * replay);
        out.fill(2 * replay + 1);
        small_in.poison();
        in.poison();
      }
      launch_graph(graph, here.stream());
      if (!looks) continue;
      here.finish();
      ASSERT_TRUE(small_in.holds(2 * replay, kSize)) << "replay " << replay;
      ASSERT_TRUE(in.holds(2 * replay + 1, kLarge)) << "replay " << replay;
      side.sync();
    }
    here.finish();
    destroy_graph(graph);
    here.end();
  });
}

TEST_P(GpuStream, NothingIsRecordedOnAPeerThatIsNotReady) {
  auto both = [](Side& side) {
    side.connect();
    void* stream = make_stream();
    Buffer buffer = side.buffer(100);
    oh_status status = OH_OK;
    void* graph = capture_graph(stream, [&] {
      status = oh_peer_stream_send(side.peer().get(), stream, buffer.data(), 100, nullptr);
    });
    EXPECT_EQ(status, OH_ERR_INVALID);
    EXPECT_NE(std::string(oh_error_text()).find("warmup"), std::string::npos) << oh_error_text();
    destroy_graph(graph);
    destroy_stream(stream);
    side.sync();
    side.disconnect();
  };
  run_pair(GetParam(), both, both);
}

TEST_P(GpuStream, AMessageTooLongIsAnErrorAndTheLaneGoesOn) {
  for (size_t size : {size_t{5'000}, size_t{400'000}}) {
    run_pair(
        GetParam(),
        [size](Side& side) {
          StreamSide here(side);
          Buffer long_one = side.buffer(size);
          Buffer short_one = side.buffer(100);
          long_one.fill(1);
          short_one.fill(2);
          here.send(long_one, size);
          here.send(short_one, 100);
          here.finish();
          // For a large message the sender gets an error, too.
          EXPECT_EQ(oh_peer_async_error(side.peer().get()),
                    size > 100'000 ? OH_ERR_TRUNCATED : OH_OK);
          here.end();
        },
        [size](Side& side) {
          StreamSide here(side);
          Buffer buffer = side.buffer(size);
          buffer.poison();
          here.recv(buffer, 1'000);
          here.finish();
          EXPECT_EQ(oh_peer_async_error(side.peer().get()), OH_ERR_TRUNCATED);
          EXPECT_NE(std::string(oh_error_text()).find(std::to_string(size)), std::string::npos);
          EXPECT_EQ(buffer.at(1'000), kPoison);
          here.recv(buffer, 1'000);
          here.finish();
          EXPECT_TRUE(buffer.holds(2, 100));
          EXPECT_EQ(oh_peer_async_error(side.peer().get()), OH_OK);
          here.end();
        });
  }
}

// Sizes sent and received are read from and written to device memory.
TEST_P(GpuStream, SizesThatOnlyTheDeviceKnows) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(10'000);
    Buffer in = side.buffer(10'000);
    Buffer sizes = side.buffer(16);
    for (uint64_t size : {uint64_t{0}, uint64_t{77}, uint64_t{9'999}}) {
      out.fill(size);
      in.poison();
      const uint64_t words[2] = {size, UINT64_MAX};
      write_device(sizes.data(), words, sizeof(words));
      auto options = onehop::detail::sized<oh_stream_options>();
      options.size_from = reinterpret_cast<const uint64_t*>(sizes.data());
      onehop::check(
          oh_peer_stream_send(side.peer().get(), here.stream(), out.data(), 10'000, &options));
      options.size_from = nullptr;
      options.size_to = reinterpret_cast<uint64_t*>(sizes.data()) + 1;
      onehop::check(
          oh_peer_stream_recv(side.peer().get(), here.stream(), in.data(), 10'000, &options));
      here.finish();
      uint64_t came[2] = {};
      read_device(came, sizes.data(), sizeof(came));
      EXPECT_EQ(came[1], size);
      EXPECT_TRUE(in.holds(size, size));
      EXPECT_EQ(in.at(size), kPoison);
    }
    here.end();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStream, ::testing::ValuesIn(stream_kinds()), name_of);

}  // namespace
}  // namespace conformance::gpu_stream
