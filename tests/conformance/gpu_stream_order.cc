// SPDX-License-Identifier: Apache-2.0
//
// Calls on one lane are ordered whichever streams they use, even if two streams have the same
// handle.
#include <future>
#include <thread>

#include "conformance/gpu_stream.h"

namespace conformance::gpu_stream_order {
namespace {

constexpr size_t kSize = 300'000;  // a send of this size waits for its receive
constexpr size_t kCalls = 3;
constexpr int64_t kLong = 20'000'000'000;
void* const kPerThread = reinterpret_cast<void*>(2);  // CU_STREAM_PER_THREAD
void* const kLegacy = reinterpret_cast<void*>(1);     // CU_STREAM_LEGACY

// A driver that cannot identify the stream of a handle.
LinkKind without_ids(LinkKind kind) {
  kind.name += "WithoutStreamIds";
  kind.env["FAKE_CUDA"] = "devices=2,fail=cuStreamGetId:0:801";
  return kind;
}

std::vector<LinkKind> order_kinds() {
  std::vector<LinkKind> kinds = way_kinds();
  if (!std::getenv("REAL_GPUS")) {
    for (const LinkKind& kind : {with_stream(), by_proxy()}) kinds.push_back(without_ids(kind));
  }
  return kinds;
}

class GpuStreamOrder : public ::testing::TestWithParam<LinkKind> {
 protected:
  // Side 0 posts its calls to the lane by `give` before side 1 posts any, whose calls match them in
  // order. Side 0's last call follows the others, so all have ended when it has.
  using Give = std::function<void(const std::function<void(void* stream, size_t index)>& call)>;
  static void run(bool sends, const Give& give) {
    auto both = [&](Side& side) {
      StreamSide here(side);
      std::vector<Buffer> buffers;
      for (size_t i = 0; i < kCalls; ++i) {
        buffers.push_back(side.buffer(kSize));
      }
      const bool sends_here = sends == (side.number() == 0);
      // Before any call: a copy by the host waits for work on threads' default streams.
      for (size_t i = 0; i < kCalls; ++i) sends_here ? buffers[i].fill(i) : buffers[i].poison();
      auto call = [&](void* stream, size_t i) {
        oh_stream_options options = within(kLong);
        oh_peer* peer = side.peer().get();
        EXPECT_EQ(sends_here
                      ? oh_peer_stream_send(peer, stream, buffers[i].data(), kSize, &options)
                      : oh_peer_stream_recv(peer, stream, buffers[i].data(), kSize, &options),
                  OH_OK)
            << oh_error_text();
      };
      onehop::check(oh_peer_warmup(side.peer().get(), kLong));
      if (side.number() == 0) {
        give(call);
        call(here.stream(), kCalls - 1);
        side.sync();
      } else {
        side.sync();
        for (size_t i = 0; i < kCalls; ++i) call(here.stream(), i);
      }
      here.finish();
      for (size_t i = 0; i < kCalls && !sends_here; ++i) {
        EXPECT_TRUE(buffers[i].holds(i, kSize)) << "message " << i;
      }
      here.end();
    };
    run_pair(GetParam(), both, both);
  }
};

// Each thread has its own default stream, all with the same handle. The threads live until all have
// called.
TEST_P(GpuStreamOrder, ThreadsOnTheirDefaultStreamsFollowEachOther) {
  for (bool sends : {false, true}) {
    run(sends, [](const std::function<void(void*, size_t)>& call) {
      std::promise<void> all_called;
      std::shared_future<void> leave = all_called.get_future().share();
      std::vector<std::thread> threads;
      for (size_t i = 0; i + 1 < kCalls; ++i) {
        std::promise<void> called;
        threads.emplace_back([&call, &called, leave, i] {
          call(kPerThread, i);
          called.set_value();
          leave.wait();
        });
        called.get_future().wait();
      }
      all_called.set_value();
      for (std::thread& thread : threads) thread.join();
    });
  }
}

// A stream that is destroyed with work in flight, and the next one, which gets its handle.
TEST_P(GpuStreamOrder, AStreamFollowsADestroyedOneThatHadItsHandle) {
  for (bool sends : {false, true}) {
    run(sends, [](const std::function<void(void*, size_t)>& call) {
      void* former = nullptr;
      for (size_t i = 0; i + 1 < kCalls; ++i) {
        void* stream = make_stream();
        EXPECT_TRUE(stream == former || !former || std::getenv("REAL_GPUS")) << "another handle";
        call(stream, i);
        former = stream;
        destroy_stream_under_way(stream);
      }
    });
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamOrder, ::testing::ValuesIn(order_kinds()), name_of);

// The legacy default stream has two handles: a group's calls on both form one launch, in which
// sends and receives do not wait for each other.
TEST(GpuStreamOrder, BothHandlesOfTheLegacyStreamAreOneInAGroup) {
  run_streams(with_stream(), [](Side& side, StreamSide& here) {
    Buffer out = side.buffer(kSize);
    Buffer in = side.buffer(kSize);
    out.fill(static_cast<uint64_t>(side.number()));
    in.poison();
    oh_stream_options options = within(kLong);
    onehop::check(oh_peer_warmup(side.peer().get(), kLong));
    side.sync();
    onehop::check(oh_group_begin());
    onehop::check(oh_peer_stream_send(side.peer().get(), nullptr, out.data(), kSize, &options));
    onehop::check(oh_peer_stream_recv(side.peer().get(), kLegacy, in.data(), kSize, &options));
    onehop::check(oh_group_end());
    synchronize_stream(nullptr);
    EXPECT_TRUE(in.holds(static_cast<uint64_t>(1 - side.number()), kSize));
    here.end();
  });
}

}  // namespace
}  // namespace conformance::gpu_stream_order
