// SPDX-License-Identifier: Apache-2.0
//
// One-sided atomic operations, whichever thread executes them.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "conformance/sides.h"

namespace conformance::atomics {
namespace {

using namespace std::chrono_literals;

constexpr uint64_t kAdds = 500;  // per thread
constexpr size_t kSize = 100'000;
constexpr size_t kBytes = sizeof(uint64_t);
constexpr uint8_t kPoison = 0xEE;

// Returns an 8-byte aligned offset at or after `from`, whatever the start of the memory.
size_t place_in(Buffer& buffer, size_t from) {
  return from + (kBytes - (reinterpret_cast<uint64_t>(buffer.data()) + from) % kBytes) % kBytes;
}

// Two threads here and one of the owner, which does not call onehop, add to the same word.
TEST_P(OneSided, AtomicsLoseNoAdd) {
  if (on_device(GetParam().memory[1])) GTEST_SKIP() << "of host memory";
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        const auto at = static_cast<size_t>(side.hear_number());
        std::vector<uint64_t> found[2];
        std::vector<std::thread> threads;
        for (std::vector<uint64_t>& mine : found) {
          threads.emplace_back([&] {
            for (uint64_t i = 0; i < kAdds; ++i) {
              mine.push_back(side.peer().fetch_add(remote, at, 1, 30s));
            }
          });
        }
        for (std::thread& thread : threads) thread.join();
        side.sync();
        side.sync();
        EXPECT_EQ(side.peer().fetch_add(remote, at, uint64_t{0} - 5), 3 * kAdds);
        EXPECT_EQ(side.peer().compare_swap(remote, at, 7, 8), 3 * kAdds - 5);
        EXPECT_EQ(side.peer().compare_swap(remote, at, 3 * kAdds - 5, 8), 3 * kAdds - 5);
        uint64_t word = 0;
        side.peer().get(&word, remote, at, kBytes).wait();
        EXPECT_EQ(word, 8u);
        // No previous value was returned twice.
        std::vector<uint64_t> all = found[0];
        all.insert(all.end(), found[1].begin(), found[1].end());
        std::ranges::sort(all);
        EXPECT_EQ(std::ranges::adjacent_find(all), all.end());
        EXPECT_TRUE(std::ranges::is_sorted(found[0]) && std::ranges::is_sorted(found[1]));
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kSize);
        buffer.poison();
        const size_t at = place_in(buffer, 1000);
        auto* word = reinterpret_cast<uint64_t*>(buffer.data() + at);
        *word = 0;
        onehop::Region region = side.endpoint().register_memory(buffer.data(), kSize);
        side.tell(region.descriptor());
        side.tell_number(static_cast<int64_t>(at));
        for (uint64_t i = 0; i < kAdds; ++i) __atomic_fetch_add(word, 1, __ATOMIC_RELAXED);
        side.sync();
        EXPECT_EQ(__atomic_load_n(word, __ATOMIC_RELAXED), 3 * kAdds);
        side.sync();
        side.sync();
        EXPECT_EQ(buffer.at(at - 1), kPoison);
        EXPECT_EQ(buffer.at(at + kBytes), kPoison);
      });
}

TEST_P(OneSided, AtomicsThatCannotBeAreRefused) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        onehop::RemoteRegion read_only = side.peer().attach(side.hear());
        const auto at = static_cast<size_t>(side.hear_number());
        auto add_to = [&](const onehop::RemoteRegion& region, size_t offset) {
          return status_of([&] { side.peer().fetch_add(region, offset, 1, 30s); });
        };
        // GPU memory requires a kernel that can access it: gpu_stream_atomics.cc.
        const bool device = on_device(side.kind().memory[1 - side.number()]);
        const oh_status added = add_to(remote, at);
        EXPECT_TRUE(added == OH_OK || (device && added == OH_ERR_NOT_VIABLE)) << oh_error_text();
        EXPECT_EQ(add_to(remote, at + 1), OH_ERR_INVALID);
        EXPECT_EQ(add_to(remote, kSize - 7), OH_ERR_RANGE);
        EXPECT_EQ(add_to(remote, SIZE_MAX), OH_ERR_RANGE);
        EXPECT_EQ(add_to(read_only, at), OH_ERR_READ_ONLY);
        EXPECT_EQ(oh_peer_fetch_add(side.peer().get(), remote.get(), at, 1, 0, nullptr),
                  OH_ERR_INVALID);
        side.sync();
        side.sync();
        const oh_status late = add_to(remote, at);
        EXPECT_TRUE(late == OH_ERR_RETIRED || (added != OH_OK && late == added)) << oh_error_text();
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kSize);
        auto region =
            std::make_unique<onehop::Region>(side.endpoint().register_memory(buffer.data(), kSize));
        onehop::Region read_only = side.endpoint().register_read_only(buffer.data(), kSize);
        side.tell(region->descriptor());
        side.tell(read_only.descriptor());
        side.tell_number(static_cast<int64_t>(place_in(buffer, 8)));
        side.sync();
        region->deregister();
        side.sync();
        side.sync();
      });
}

// Where the owner must reply, but cannot.
TEST(OneSidedAtomics, OfAPeerThatIsStoppedOrGoneEnd) {
  for (const LinkKind& kind : process_kinds()) {
    if (std::string(kind.name) != "no_single_copy" && std::string(kind.name) != "no_segment")
      continue;
    run_with_victim(
        kind,
        [](Side& side) {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          const pid_t process = side.other_process();
          const auto at = static_cast<size_t>(side.hear_number());
          EXPECT_FALSE(remote.is_mapped());
          EXPECT_EQ(side.peer().fetch_add(remote, at, 1, 30s), 0u);
          ASSERT_EQ(kill(process, SIGSTOP), 0);
          await_stopped(process);
          EXPECT_EQ(status_of([&] { side.peer().fetch_add(remote, at, 10, 50ms); }),
                    OH_ERR_TIMEOUT);
          ASSERT_EQ(kill(process, SIGCONT), 0);
          // Posted after the abandoned operation, whose late reply is ignored.
          EXPECT_EQ(side.peer().fetch_add(remote, at, 1, 30s), 11u);
          side.tell_number(0);
          oh_status status = OH_OK;
          while (status == OH_OK) {
            status = status_of([&] { side.peer().fetch_add(remote, at, 1, 30s); });
          }
          EXPECT_EQ(status, OH_ERR_PEER_LOST) << oh_error_text();
        },
        [](Side& side) {
          Buffer buffer = side.buffer(kSize);
          const size_t at = place_in(buffer, 0);
          memset(buffer.data(), 0, kSize);
          onehop::Region region = side.endpoint().register_memory(buffer.data(), kSize);
          side.tell(region.descriptor());
          side.tell_number(static_cast<int64_t>(at));
          side.hear_number();
          _exit(0);
        });
  }
}

}  // namespace
}  // namespace conformance::atomics
