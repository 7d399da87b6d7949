// SPDX-License-Identifier: Apache-2.0
//
// Links that are closed as soon as the awaited operations have ended: signals and notifications
// posted after them still arrive.
#include <chrono>

#include "conformance/fake_driver.h"
#include "conformance/sides.h"
#include "sanitizers.h"

namespace conformance::one_sided_closes {
namespace {

using namespace std::chrono_literals;

constexpr int kRounds = kSanitized ? 3 : 10;

// One link kind for each path of puts.
std::vector<LinkKind> ways() {
  std::vector<LinkKind> kinds;
  for (LinkKind kind : process_kinds()) {
    const std::string name = kind.name;
    if (name == "no_single_copy" || name == "no_segment" || name.starts_with("ucx_")) {
      kinds.push_back(kind);
    }
  }
  for (LinkKind kind : rma_kinds()) kinds.push_back(kind);
  kinds.push_back(between_gpus(MemoryKind::kAsync));
  kinds.push_back(between_hosts(OH_PATH_UCX, between_gpus(MemoryKind::kMalloc)));
  if (!kSanitized) {
    kinds.push_back(between_hosts(OH_PATH_SOCKET, between_gpus(MemoryKind::kMalloc)));
  }
  return kinds;
}

class OneSidedCloses : public ::testing::TestWithParam<LinkKind> {};

TEST_P(OneSidedCloses, ASignalBehindAPutThatHasEnded) {
  constexpr size_t kSize = 300'000;
  run_pair(
      GetParam(),
      [](Side& side) {
        Buffer buffer = side.buffer(kSize);
        for (uint64_t round = 0; round < kRounds; ++round) {
          onehop::Peer peer = side.endpoint().connect(side.hear(), 20s);
          onehop::RemoteRegion remote = peer.attach(side.hear());
          buffer.fill(round);
          onehop::Request put = peer.put(buffer.data(), remote, 0, kSize);
          peer.signal(3);
          put.wait(20s);
          peer.close();
          side.sync();
        }
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kSize);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), kSize);
        for (uint64_t round = 0; round < kRounds; ++round) {
          side.tell(side.endpoint().address());
          onehop::Peer peer = side.endpoint().accept(20s);
          side.tell(region.descriptor());
          EXPECT_EQ(status_of([&] { peer.wait_signal(3, 1, 20s); }), OH_OK) << "round " << round;
          EXPECT_TRUE(buffer.holds(round, kSize));
          side.sync();
        }
      });
}

INSTANTIATE_TEST_SUITE_P(Ways, OneSidedCloses, ::testing::ValuesIn(ways()),
                         [](const auto& test) { return test.param.name; });

}  // namespace
}  // namespace conformance::one_sided_closes
