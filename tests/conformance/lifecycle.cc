// SPDX-License-Identifier: Apache-2.0
//
// Stale offers, links that end while in use, and children of fork().
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <optional>
#include <thread>

#include "base/sync.h"
#include "conformance/sides.h"

namespace conformance::lifecycle {
namespace {

using namespace std::chrono_literals;

constexpr size_t kMedium = 300000;

// The slot of a cancelled receive is reused for another one; the sender still has the old offer.
TEST_P(Conformance, AnOldOfferSpoilsNoNewOne) {
  run(
      [](Side& side) {
        side.sync();
        for (uint64_t round = 0; round < 20; ++round) {
          side.sync();
          Buffer second = side.buffer(kMedium);
          Buffer first = side.buffer(kMedium);
          second.fill(2 * round);
          first.fill(2 * round + 1);
          onehop::Request two = side.peer().isend(second.data(), kMedium, 2);
          onehop::Request one = side.peer().isend(first.data(), kMedium, 1);
          side.sync();
          two.wait();
          one.wait();
        }
      },
      [](Side& side) {
        side.sync();
        for (uint64_t round = 0; round < 20; ++round) {
          Buffer second = side.buffer(kMedium);
          Buffer first = side.buffer(kMedium);
          EXPECT_TRUE(side.peer().irecv(first.data(), kMedium, 1).cancel());
          onehop::Request two = side.peer().irecv(second.data(), kMedium, 2);
          side.sync();
          side.sync();
          onehop::Request one = side.peer().irecv(first.data(), kMedium, 1);
          two.wait();
          one.wait();
          EXPECT_TRUE(second.holds(2 * round, kMedium)) << "round " << round;
          EXPECT_TRUE(first.holds(2 * round + 1, kMedium)) << "round " << round;
        }
      });
}

// Receives that are posted and cancelled repeatedly must not accumulate state.
TEST_P(Conformance, ReceivesTakenBackDoNotPileUp) {
  run(
      [](Side& side) {
        while (side.hear_number() == 0) side.endpoint().progress();
        Buffer buffer = side.buffer(kMedium);
        buffer.fill(1);
        side.peer().send(buffer.data(), kMedium, 1);
        side.peer().send(buffer.data(), kMedium, 20001);
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kMedium);
        for (int i = 0; i < 3000; ++i) {
          EXPECT_TRUE(side.peer().irecv(buffer.data(), kMedium, 1).cancel());
          if (i % 50 == 0) side.tell_number(0);
        }
        for (uint64_t tag = 2; tag < 20000; ++tag) {
          EXPECT_TRUE(side.peer().irecv(buffer.data(), kMedium, tag).cancel());
          if (tag % 50 == 0) side.tell_number(0);
        }
        side.tell_number(1);
        side.peer().recv(buffer.data(), kMedium, 1);
        EXPECT_TRUE(buffer.holds(1, kMedium));
        side.peer().recv(buffer.data(), kMedium, 20001);
        EXPECT_TRUE(buffer.holds(1, kMedium));
      });
}

// After a link or an endpoint was closed its regions are not written any more.
void leave_closed_regions_alone(const LinkKind& kind) {
  for (bool whole_endpoint : {false, true}) {
    run_pair(
        kind,
        [](Side& side) {
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          Buffer buffer = side.buffer(kMedium);
          buffer.fill(1);
          bool open = true;
          side.peer().put(buffer.data(), remote, 0, kMedium).wait();
          side.tell_number(1);
          while (open) {
            std::optional<onehop::Request> put;
            try {
              put.emplace(side.peer().put(buffer.data(), remote, 0, kMedium)).wait();
            } catch (const onehop::Error& failure) {
              // In doubt: an engine took longer than the end of a link waits for it.
              EXPECT_TRUE(
                  failure.status() == OH_ERR_PEER_LOST || failure.status() == OH_ERR_RETIRED ||
                  failure.status() == OH_ERR_CANCELLED || failure.status() == OH_ERR_IN_DOUBT)
                  << failure.what();
              EXPECT_TRUE(!put || eventually([&] { return put->buffer_released(); }))
                  << failure.what();
              open = false;
            }
          }
        },
        [&](Side& side) {
          Buffer buffer = side.buffer(kMedium);
          auto region = std::make_unique<onehop::Region>(
              side.endpoint().register_memory(buffer.data(), kMedium));
          side.tell(region->descriptor());
          side.hear_number();
          if (whole_endpoint) {
            region.reset();
            side.disconnect();
          } else {
            side.peer().close();
            region->deregister();
          }
          for (int round = 0; round < 50; ++round) {
            buffer.poison();
            std::this_thread::yield();
            onehop::Bytes bytes = buffer.bytes();
            for (size_t i = 0; i < kMedium; i += 97) {
              ASSERT_EQ(bytes[i], 0xee) << "byte " << i << " was written after the close";
            }
          }
        });
  }
}

TEST_P(Conformance, ClosedRegionsAreLeftAlone) { leave_closed_regions_alone(GetParam()); }

// Where keys give the peer access.
class ClosedRegions : public ::testing::TestWithParam<LinkKind> {};
TEST_P(ClosedRegions, AreLeftAlone) { leave_closed_regions_alone(GetParam()); }
INSTANTIATE_TEST_SUITE_P(LifecycleRma, ClosedRegions, ::testing::ValuesIn(rma_kinds()), name_of);

// A child of fork() releases everything, and the parent's link is not affected.
TEST_P(Conformance, ChildrenOfForkHarmNobody) {
  if (!GetParam().processes) GTEST_SKIP() << "the other side's threads do not exist in a child";
#if defined(OH_THREAD_SANITIZER)
  GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start any of its own";
#endif
  run(
      [](Side& side) {
        uint64_t number = 0;
        for (uint64_t i = 0; i < 3; ++i) {
          side.peer().recv(&number, sizeof(number));
          EXPECT_EQ(number, i);
        }
      },
      [](Side& side) {
        uint64_t number = 0;
        side.peer().send(&number, sizeof(number));
        Buffer buffer = side.buffer(kMedium);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), kMedium);
        onehop::Request pending = side.peer().irecv(buffer.data(), kMedium, 5);
        pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
          int failures = 0;
          try {
            side.peer().send(&number, sizeof(number));
            ++failures;
          } catch (const onehop::EndpointError& failure) {
            failures += failure.status() != OH_ERR_FORKED;
          }
          {
            onehop::Request gone = std::move(pending);
          }
          {
            onehop::Region gone = std::move(region);
          }
          side.disconnect();
          // The child may have its own links.
          onehop::Endpoint endpoint;
          onehop::Peer self = endpoint.connect(endpoint.address());
          onehop::Request request = self.irecv(&number, sizeof(number));
          self.send(&number, sizeof(number));
          request.wait();
          _exit(failures);
        }
        int status = 0;
        ASSERT_EQ(waitpid(child, &status, 0), child);
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
        for (number = 1; number < 3; ++number) side.peer().send(&number, sizeof(number));
      });
}

}  // namespace
}  // namespace conformance::lifecycle
