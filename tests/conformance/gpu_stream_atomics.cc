// SPDX-License-Identifier: Apache-2.0
//
// Atomic operations of the stream domain: on GPU memory by a kernel if the link has native atomics,
// on host memory by the host if the link's streams use the proxy.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "conformance/gpu_stream.h"

namespace conformance::gpu_stream_atomics {
namespace {

using namespace std::chrono_literals;

constexpr size_t kWord = sizeof(uint64_t);
constexpr size_t kSize = 64 * kWord;
constexpr uint64_t kRounds = 40;

uint64_t word_at(const Buffer& buffer, size_t index) {
  uint64_t word = 0;
  std::memcpy(&word, buffer.bytes().data() + index * kWord, kWord);
  return word;
}

// Zeroes the peer's words and the local ones.
void zero(Side& side, onehop::RemoteRegion& remote) {
  const onehop::Bytes zeroes(kSize);
  side.peer().put(zeroes.data(), remote, 0, kSize).wait();
  side.sync();
}

// The calls of one side, and where they store the previous values.
struct Atomics {
  Side& side;
  void* stream;
  onehop::RemoteRegion& remote;
  Buffer& found;

  uint64_t* place(size_t index) const { return reinterpret_cast<uint64_t*>(found.data()) + index; }
  oh_status add(size_t offset, uint64_t value, uint64_t* before) const {
    return oh_peer_stream_fetch_add(side.peer().get(), stream, remote.get(), offset, value, before);
  }
  oh_status swap(size_t offset, uint64_t expected, uint64_t value, uint64_t* before) const {
    return oh_peer_stream_compare_swap(side.peer().get(), stream, remote.get(), offset, expected,
                                       value, before);
  }
};

class GpuStreamAtomics : public ::testing::TestWithParam<LinkKind> {};

// Each side changes words of the other's memory, also in graphs.
TEST_P(GpuStreamAtomics, TheyComeInTheOrderOfTheStreamAndTellWhatWasThere) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer shown = side.buffer(kSize);
    Buffer found = side.buffer((kRounds + 8) * kWord);
    onehop::Region region = side.endpoint().register_memory(shown.data(), kSize);
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    zero(side, remote);
    const Atomics atomics{side, here.stream(), remote, found};
    onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
    for (uint64_t i = 0; i < kRounds / 2; ++i) onehop::check(atomics.add(8, 3, atomics.place(i)));
    void* graph = capture_graph(here.stream(), [&] {
      onehop::check(atomics.add(8, 3, atomics.place(kRounds)));
      onehop::check(atomics.add(16, 1, nullptr));
    });
    const uint64_t replays = kRounds / 2;
    for (uint64_t i = 0; i < replays; ++i) launch_graph(graph, here.stream());
    onehop::check(atomics.swap(24, 1, 5, atomics.place(kRounds + 1)));
    onehop::check(atomics.swap(24, 0, 5, atomics.place(kRounds + 2)));
    onehop::check(atomics.swap(24, 5, 6, nullptr));
    onehop::check(atomics.add(24, uint64_t{0} - 7, atomics.place(kRounds + 3)));
    here.finish();
    for (uint64_t i = 0; i < kRounds / 2; ++i) EXPECT_EQ(word_at(found, i), 3 * i);
    EXPECT_EQ(word_at(found, kRounds), 3 * (kRounds - 1)) << "of the last replay";
    EXPECT_EQ(word_at(found, kRounds + 1), 0u);
    EXPECT_EQ(word_at(found, kRounds + 2), 0u);
    EXPECT_EQ(word_at(found, kRounds + 3), 6u);
    side.sync();
    EXPECT_EQ(word_at(shown, 0), 0u);
    EXPECT_EQ(word_at(shown, 1), 3 * kRounds);
    EXPECT_EQ(word_at(shown, 2), replays);
    EXPECT_EQ(word_at(shown, 3), uint64_t{0} - 1);
    side.sync();
    destroy_graph(graph);
    here.end();
  });
}

// A signal after an atomic operation arrives after it.
TEST_P(GpuStreamAtomics, ASignalFollows) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer shown = side.buffer(kSize);
    Buffer seen = side.buffer(kSize);
    onehop::Region region = side.endpoint().register_memory(shown.data(), kSize);
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    zero(side, remote);
    const Atomics atomics{side, here.stream(), remote, seen};
    const oh_stream_options patient = within(20'000'000'000);
    for (uint64_t round = 1; round <= kRounds; ++round) {
      onehop::check(atomics.add(0, 1, nullptr));
      onehop::check(oh_peer_stream_signal(side.peer().get(), here.stream(), 4, 1));
      onehop::check(oh_peer_stream_wait_signal(side.peer().get(), here.stream(), 4, 1, &patient));
      copy_on(here.stream(), seen.data(), shown.data(), kWord);
      here.finish();
      EXPECT_EQ(word_at(seen, 0), round);
      side.sync();
    }
    here.end();
  });
}

TEST_P(GpuStreamAtomics, WhatCannotBeIsRefusedAndNothingIsEnqueued) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer shown = side.buffer(kSize);
    Buffer found = side.buffer(kSize);
    onehop::Region region = side.endpoint().register_memory(shown.data(), kSize);
    onehop::Region fixed = side.endpoint().register_read_only(shown.data(), kSize);
    onehop::Bytes of_host(kSize);
    onehop::Region host = side.endpoint().register_memory(of_host.data(), kSize);
    side.tell(region.descriptor());
    side.tell(fixed.descriptor());
    side.tell(host.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    onehop::RemoteRegion read_only = side.peer().attach(side.hear());
    onehop::RemoteRegion host_memory = side.peer().attach(side.hear());
    zero(side, remote);
    const Atomics atomics{side, here.stream(), remote, found};
    EXPECT_EQ(atomics.add(4, 1, nullptr), OH_ERR_INVALID) << oh_error_text();
    EXPECT_EQ(atomics.swap(kSize, 0, 1, nullptr), OH_ERR_RANGE) << oh_error_text();
    EXPECT_EQ(atomics.swap(kSize - 4, 0, 1, nullptr), OH_ERR_RANGE) << oh_error_text();
    uint64_t on_host = 0;
    EXPECT_EQ(atomics.add(0, 1, &on_host), OH_ERR_INVALID) << oh_error_text();
    auto* odd = reinterpret_cast<uint64_t*>(found.data() + 4);
    EXPECT_EQ(atomics.add(0, 1, odd), OH_ERR_INVALID) << oh_error_text();
    const Atomics on_fixed{side, here.stream(), read_only, found};
    EXPECT_EQ(on_fixed.add(0, 1, nullptr), OH_ERR_READ_ONLY) << oh_error_text();
    const Atomics on_host_memory{side, here.stream(), host_memory, found};
    EXPECT_EQ(on_host_memory.add(0, 1, nullptr), OH_ERR_NOT_VIABLE);
    EXPECT_NE(std::string(oh_error_text()).find("oh_peer_fetch_add"), std::string::npos)
        << oh_error_text();
    here.finish();
    side.sync();
    EXPECT_EQ(word_at(shown, 0), 0u);
    region.deregister(20s);
    side.sync();
    EXPECT_EQ(atomics.add(0, 1, nullptr), OH_ERR_RETIRED) << oh_error_text();
    here.end();
  });
}

// Blocking atomics of the host domain on GPU memory: two threads, a stream, and the owner through a
// link of its own, all on one word.
TEST_P(GpuStreamAtomics, ThoseOfTheHostAreAtomicTowardsThem) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer shown = side.buffer(kSize);
    Buffer found = side.buffer(kSize);
    onehop::Region region = side.endpoint().register_memory(shown.data(), kSize);
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    zero(side, remote);
    const Atomics atomics{side, here.stream(), remote, found};
    std::vector<uint64_t> told[2];
    std::vector<std::thread> threads;
    for (std::vector<uint64_t>& mine : told) {
      threads.emplace_back([&] {
        for (uint64_t i = 0; i < kRounds; ++i) {
          mine.push_back(side.peer().fetch_add(remote, 40, 1, 20s));
        }
      });
    }
    for (uint64_t i = 0; i < kRounds; ++i) onehop::check(atomics.add(40, 1, nullptr));
    for (std::thread& thread : threads) thread.join();
    here.finish();
    EXPECT_EQ(side.peer().fetch_add(remote, 40, uint64_t{0} - 5), 3 * kRounds);
    EXPECT_EQ(side.peer().compare_swap(remote, 40, 7, 8), 3 * kRounds - 5);
    EXPECT_EQ(side.peer().compare_swap(remote, 40, 3 * kRounds - 5, 8), 3 * kRounds - 5);
    std::vector<uint64_t> all = told[0];
    all.insert(all.end(), told[1].begin(), told[1].end());
    std::ranges::sort(all);
    EXPECT_EQ(std::ranges::adjacent_find(all), all.end()) << "one was told a number twice";
    side.sync();
    EXPECT_EQ(word_at(shown, 5), 8u);
    side.sync();
    region.deregister(20s);
    {
      const Buffer gone = std::move(shown);
    }
    side.sync();
    // Before its mapping has gone here, and after that.
    for (int i = 0; i < 100; ++i) {
      uint64_t before = 0;
      ASSERT_EQ(
          oh_peer_fetch_add(side.peer().get(), remote.get(), 40, 1, OH_TIMEOUT_DEFAULT, &before),
          OH_ERR_RETIRED)
          << oh_error_text();
      std::this_thread::sleep_for(100us);
    }
    side.sync();
    here.end();
  });
}

// Memory that peers can map.
std::vector<LinkKind> mapped_kinds() {
  std::vector<LinkKind> kinds = kernel_kinds();
  std::erase_if(kinds, [](const LinkKind& kind) { return kind.memory[0] == MemoryKind::kAsync; });
  return kinds;
}
INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamAtomics, ::testing::ValuesIn(mapped_kinds()), name_of);

TEST(GpuStreamAtomicsElsewhere, OnMemoryThatIsNotMappedTheyAreRefused) {
  run_streams(real_if_wanted(between_gpus(MemoryKind::kAsync)), [](Side& side, StreamSide& here) {
    Buffer shown = side.buffer(kSize);
    onehop::Region region = side.endpoint().register_memory(shown.data(), kSize);
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    const Atomics atomics{side, here.stream(), remote, shown};
    EXPECT_EQ(atomics.add(0, 1, nullptr), OH_ERR_NOT_VIABLE);
    EXPECT_NE(std::string(oh_error_text()).find("not mapped on this GPU"), std::string::npos)
        << oh_error_text();
    side.sync();
    here.end();
  });
}

// Both endpoints are on one GPU, and the region is on another one, to which the link has no native
// atomics.
TEST(GpuStreamAtomicsElsewhere, OnMemoryOfAnotherGpuThanTheEndpointsTheyMayBeRefused) {
  for (bool processes : {true, false}) {
    LinkKind kind = without_atomics();
    kind.device[1] = kind.device[0];
    kind.processes = processes;
    run_streams(kind, [&](Side& side, StreamSide& here) {
      Buffer near = side.buffer(kSize);
      use_device(kind.driver, 1);
      Buffer far(kSize, MemoryKind::kMalloc);
      use_device(kind.driver, kind.device[0]);
      onehop::Region near_region = side.endpoint().register_memory(near.data(), kSize);
      onehop::Region far_region = side.endpoint().register_memory(far.data(), kSize);
      side.tell(near_region.descriptor());
      side.tell(far_region.descriptor());
      onehop::RemoteRegion near_remote = side.peer().attach(side.hear());
      onehop::RemoteRegion far_remote = side.peer().attach(side.hear());
      zero(side, near_remote);
      zero(side, far_remote);
      EXPECT_EQ(side.peer().fetch_add(near_remote, 0, 1), 0u);
      const Atomics atomics{side, here.stream(), far_remote, near};
      EXPECT_EQ(atomics.add(0, 1, nullptr), OH_ERR_NOT_VIABLE);
      EXPECT_NE(std::string(oh_error_text()).find("has no native atomics"), std::string::npos)
          << oh_error_text();
      uint64_t before = 0;
      EXPECT_EQ(
          oh_peer_fetch_add(side.peer().get(), far_remote.get(), 0, 1, OH_TIMEOUT_DEFAULT, &before),
          OH_ERR_NOT_VIABLE)
          << oh_error_text();
      here.finish();
      side.sync();
      EXPECT_EQ(word_at(near, 0), 1u);
      EXPECT_EQ(word_at(far, 0), 0u);
      here.end();
    });
  }
}

class GpuProxyAtomics : public ::testing::TestWithParam<LinkKind> {};

// More operations than tickets, concurrent with adds of the owner's threads.
TEST_P(GpuProxyAtomics, OnHostMemoryByTheHost) {
  run_streams(
      GetParam(),
      [](Side& side, StreamSide& here) {
        Buffer found = side.buffer((kRounds + 1) * kWord);
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        const Atomics atomics{side, here.stream(), remote, found};
        onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
        for (uint64_t i = 0; i < kRounds / 2; ++i) {
          onehop::check(atomics.add(8, 1, atomics.place(i)));
        }
        void* graph =
            capture_graph(here.stream(), [&] { onehop::check(atomics.add(8, 1, nullptr)); });
        for (uint64_t i = 0; i < kRounds / 2; ++i) launch_graph(graph, here.stream());
        onehop::check(atomics.swap(16, 9, 1, atomics.place(kRounds)));
        onehop::check(atomics.swap(16, 0, 2, nullptr));
        here.finish();
        EXPECT_EQ(error_of(side), OH_OK) << oh_error_text();
        uint64_t last = 0;
        for (uint64_t i = 0; i < kRounds / 2; ++i) {
          EXPECT_TRUE(i == 0 || word_at(found, i) > last);
          last = word_at(found, i);
        }
        EXPECT_EQ(word_at(found, kRounds), 0u);
        EXPECT_EQ(atomics.add(9, 1, nullptr), OH_ERR_INVALID) << oh_error_text();
        side.sync();
        side.sync();  // the region was deregistered
        onehop::check(atomics.add(8, 1, nullptr));
        here.finish();
        EXPECT_EQ(error_of(side), OH_ERR_RETIRED) << oh_error_text();
        destroy_graph(graph);
        here.end();
      },
      [](Side& side, StreamSide& here) {
        std::vector<uint64_t> words(4);
        onehop::Region region = side.endpoint().register_memory(words.data(), words.size() * kWord);
        side.tell(region.descriptor());
        onehop::check(oh_peer_warmup(side.peer().get(), OH_TIMEOUT_DEFAULT));
        for (uint64_t i = 0; i < kRounds; ++i) {
          __atomic_fetch_add(&words[1], 1, __ATOMIC_RELAXED);
        }
        side.sync();
        meet_threads(side.peer());
        EXPECT_EQ(__atomic_load_n(&words[1], __ATOMIC_RELAXED), 2 * kRounds);
        EXPECT_EQ(__atomic_load_n(&words[2], __ATOMIC_RELAXED), 2u);
        region.deregister(20s);
        side.sync();
        here.end();
      });
}

TEST_P(GpuProxyAtomics, OnGpuMemoryTheyAreRefused) {
  run_streams(GetParam(), [](Side& side, StreamSide& here) {
    Buffer shown = side.buffer(kSize);
    onehop::Region region = side.endpoint().register_memory(shown.data(), kSize);
    side.tell(region.descriptor());
    onehop::RemoteRegion remote = side.peer().attach(side.hear());
    const Atomics atomics{side, here.stream(), remote, shown};
    EXPECT_EQ(atomics.add(0, 1, nullptr), OH_ERR_NOT_VIABLE);
    const std::string why = oh_error_text();
    EXPECT_NE(why.find(why_by_proxy(side.kind())), std::string::npos) << why;
    uint64_t before = 0;
    EXPECT_EQ(oh_peer_fetch_add(side.peer().get(), remote.get(), 0, 1, OH_TIMEOUT_DEFAULT, &before),
              OH_ERR_NOT_VIABLE);
    EXPECT_NE(std::string(oh_error_text()).find(why_by_proxy(side.kind())), std::string::npos)
        << oh_error_text();
    side.sync();
    here.end();
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuProxyAtomics, ::testing::ValuesIn(proxy_kinds()), name_of);

}  // namespace
}  // namespace conformance::gpu_stream_atomics
