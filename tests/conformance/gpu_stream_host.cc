// SPDX-License-Identifier: Apache-2.0
//
// Puts and gets of the stream domain with host memory at one end: a region of shared memory, or
// local memory that is shared or pinned. One block by the copy engine, many by the kernel; launched
// and in graphs.
#include <algorithm>
#include <chrono>
#include <vector>

#include "conformance/batches.h"
#include "conformance/gpu_stream.h"

namespace conformance::gpu_stream_host {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 70'000;
constexpr size_t kBlocks = 40;
constexpr size_t kBlock = 700;

class GpuStreamHost : public ::testing::TestWithParam<LinkKind> {};

enum class Call { kPut, kGet, kPutBatch, kGetBatch };
constexpr Call kCalls[] = {Call::kPut, Call::kGet, Call::kPutBatch, Call::kGetBatch};
bool puts(Call call) { return call == Call::kPut || call == Call::kPutBatch; }

// Whether byte i takes part.
bool moves(Call call, size_t i) {
  const bool one = call == Call::kPut || call == Call::kGet;
  return one ? i >= 100 : i < kBlocks * 2 * kBlock && i % (2 * kBlock) < kBlock;
}

void enqueue(oh_peer* peer, void* stream, Call call, Buffer& local, onehop::RemoteRegion& remote) {
  oh_batch batch = batch_of(local);
  batch.count = kBlocks;
  batch.length = kBlock;
  batch.local_stride = batch.remote_stride = 2 * kBlock;
  uint8_t* const data = local.data() + 100;
  switch (call) {
    case Call::kPut:
      return onehop::check(oh_peer_stream_put(peer, stream, data, remote.get(), 100, kSize - 100));
    case Call::kGet:
      return onehop::check(oh_peer_stream_get(peer, stream, data, remote.get(), 100, kSize - 100));
    case Call::kPutBatch:
      return onehop::check(oh_peer_stream_put_batch(peer, stream, remote.get(), &batch));
    case Call::kGetBatch:
      return onehop::check(oh_peer_stream_get_batch(peer, stream, remote.get(), &batch));
  }
}

// Both sides take turns: the one that moves bytes tells which call, and what the other's region
// had.
void move_all(Side& side, oh_peer* peer, void* stream, Buffer& local,
              onehop::RemoteRegion& remote) {
  for (const Call call : kCalls) {
    void* graph = capture_graph(stream, [&] { enqueue(peer, stream, call, local, remote); });
    for (const bool in_graph : {false, true}) {
      SCOPED_TRACE("call " + std::to_string(static_cast<int>(call)) +
                   (in_graph ? " in a graph" : ""));
      local.fill(1);
      side.sync();
      in_graph ? launch_graph(graph, stream) : enqueue(peer, stream, call, local, remote);
      synchronize_stream(stream);
      const onehop::Bytes bytes = local.bytes();
      const onehop::Bytes ours = pattern(1, kSize);
      const onehop::Bytes theirs = pattern(2, kSize);
      for (size_t i = 0; i < kSize; ++i) {
        ASSERT_EQ(bytes[i], !puts(call) && moves(call, i) ? theirs[i] : ours[i]) << i;
      }
      side.sync();
      side.sync();
    }
    destroy_graph(graph);
  }
}

void be_moved(Side& side, Buffer& region) {
  for (const Call call : kCalls) {
    for (int round = 0; round < 2; ++round) {
      region.fill(2);
      side.sync();
      side.sync();
      const onehop::Bytes bytes = region.bytes();
      const onehop::Bytes ours = pattern(2, kSize);
      const onehop::Bytes theirs = pattern(1, kSize);
      for (size_t i = 0; i < kSize; ++i) {
        ASSERT_EQ(bytes[i], puts(call) && moves(call, i) ? theirs[i] : ours[i]) << i;
      }
      side.sync();
    }
  }
}

// The side of the region. `for_another`: also for another endpoint, which connects afterwards.
void own(Side& side, StreamSide& here, bool for_another) {
  Buffer buffer = side.buffer(kSize);
  onehop::Region region = side.endpoint().register_memory(buffer.data(), kSize);
  side.tell(region.descriptor());
  be_moved(side, buffer);
  if (for_another) {
    side.tell(side.endpoint().address());
    onehop::Peer another = side.endpoint().accept();
    be_moved(side, buffer);
  }
  here.end();
}

TEST_P(GpuStreamHost, PutsAndGetsInTheOrderOfAStream) {
  run_streams(
      GetParam(),
      [](Side& side, StreamSide& here) {
        Buffer local = side.buffer(kSize);
        onehop::RemoteRegion remote = side.peer().attach(side.hear(), 20s);
        move_all(side, side.peer().get(), here.stream(), local, remote);
        oh_remote_memory memory{};
        const bool on_device = conformance::on_device(side.kind().memory[1]);
        EXPECT_EQ(oh_remote_region_device(remote.get(), &memory),
                  on_device ? OH_OK : OH_ERR_NOT_VIABLE);
        here.end();
      },
      [](Side& side, StreamSide& here) { own(side, here, /*for_another=*/false); });
}

LinkKind kind_of(const char* name, MemoryKind first, MemoryKind second) {
  LinkKind kind = real_if_wanted(between_gpus(first));
  kind.name = name;
  kind.memory[1] = second;
  return kind;
}

LinkKind threads(LinkKind kind) {
  kind.name = "threads_" + kind.name;
  kind.processes = false;
  kind.path = OH_PATH_LOCAL;
  return kind;
}

std::vector<LinkKind> kinds() {
  using enum MemoryKind;
  std::vector<LinkKind> all = {
      kind_of("malloc_and_shared", kMalloc, kShared),
      kind_of("shared_and_malloc", kShared, kMalloc),
      kind_of("pinned_and_malloc", kPinned, kMalloc),
      threads(kind_of("malloc_and_shared", kMalloc, kShared)),
      threads(kind_of("malloc_and_pinned", kMalloc, kPinned)),
  };
  return all;
}

// Of host memory, in this process. Zero with a real driver, which does not tell.
size_t registrations(const LinkKind& kind) {
  FakeCudaCounts counts{};
  if (!kind.driver.empty()) fake_driver().counts(&counts);
  return counts.host_registrations;
}

// The owner's block is registered once in this process, by the first GPU that used it.
TEST(GpuStreamHostShared, ASecondGpuUsesTheRegistrationOfTheFirst) {
  const LinkKind kind = kind_of("malloc_and_shared", MemoryKind::kMalloc, MemoryKind::kShared);
  run_streams(
      kind,
      [](Side& side, StreamSide& here) {
        Buffer local = side.buffer(kSize);
        const onehop::Bytes descriptor = side.hear();
        onehop::RemoteRegion remote = side.peer().attach(descriptor, 20s);
        move_all(side, side.peer().get(), here.stream(), local, remote);
        {
          auto options = onehop::detail::sized<oh_endpoint_options>();
          const std::string device =
              "cuda:" + std::to_string(use_device(side.kind().driver, side.kind().device[1]));
          options.device = device.c_str();
          onehop::Endpoint endpoint(&options);
          onehop::Peer peer = endpoint.connect(side.hear());
          onehop::RemoteRegion same = peer.attach(descriptor, 20s);
          Buffer second(kSize, MemoryKind::kMalloc);
          void* stream = make_stream();
          const size_t before = registrations(side.kind());
          move_all(side, peer.get(), stream, second, same);
          EXPECT_EQ(registrations(side.kind()), before);
          destroy_stream(stream);
        }
        here.end();
      },
      [](Side& side, StreamSide& here) { own(side, here, /*for_another=*/true); });
}

constexpr auto name_of = [](const auto& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamHost, ::testing::ValuesIn(kinds()), name_of);

}  // namespace
}  // namespace conformance::gpu_stream_host
