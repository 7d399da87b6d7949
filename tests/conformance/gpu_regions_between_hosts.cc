// SPDX-License-Identifier: Apache-2.0
//
// Regions that are deregistered while puts and gets of device memory cross to or from them, over
// links without shared memory.
#include <chrono>

#include "conformance/fake_driver.h"

namespace conformance {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 4'000'000;  // some buffers

class GpuRegionsBetweenHosts : public ::testing::TestWithParam<oh_path> {
 protected:
  LinkKind kind() const {
    LinkKind kind = between_hosts(GetParam(), between_gpus(MemoryKind::kMalloc));
    kind.env["ONEHOP_PROGRESS_THREAD"] = "on";
    return kind;
  }
  static onehop::Request move(Side& side, bool put, Buffer& buffer, onehop::RemoteRegion& remote) {
    return put ? side.peer().put(buffer.data(), remote, 0, buffer.size())
               : side.peer().get(buffer.data(), remote, 0, buffer.size());
  }
};

// The owner's engine stands still in the region: deregistering waits for it, and afterwards nobody
// is there.
TEST_P(GpuRegionsBetweenHosts, DeregisteringWaitsForTheEngine) {
  for (bool put : {true, false}) {
    SCOPED_TRACE(put ? "put" : "get");
    run_pair(
        kind(),
        [&](Side& side) {
          Buffer mine = side.buffer(kSize);
          put ? mine.fill(1) : mine.poison();
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          onehop::Request request = move(side, put, mine, remote);
          EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_RETIRED);
          side.sync();
        },
        [&](Side& side) {
          Buffer target = side.buffer(kSize);
          target.fill(2);
          onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
          fake_driver().hold_all();
          const uint64_t copies = fake_driver().calls("cuMemcpyAsync");
          side.tell(region.descriptor());
          ASSERT_TRUE(eventually([&] { return fake_driver().calls("cuMemcpyAsync") > copies; }));
          EXPECT_EQ(status_of([&] { region.deregister(50ms); }), OH_ERR_TIMEOUT);
          fake_driver().release_all();
          region.deregister(20s);
          target.poison();
          side.sync();
          const onehop::Bytes bytes = target.bytes();
          EXPECT_TRUE(bytes == onehop::Bytes(kSize, 0xee)) << "touched after it was deregistered";
        });
  }
}

// The initiator's engine stands still: nobody is at the region, which is memory of the host, and
// what still comes is dropped.
TEST_P(GpuRegionsBetweenHosts, DeregisteringHostMemoryWaitsForNobody) {
  run_pair(
      kind(),
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        mine.fill(1);
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        fake_driver().hold_all();
        const uint64_t copies = fake_driver().calls("cuMemcpyAsync");
        onehop::Request put = move(side, true, mine, remote);
        // Only when the owner has let it come.
        ASSERT_TRUE(eventually([&] {
          side.endpoint().progress();
          return fake_driver().calls("cuMemcpyAsync") > copies;
        }));
        side.sync();
        side.sync();
        fake_driver().release_all();
        EXPECT_EQ(status_of([&] { put.wait(20s); }), OH_ERR_RETIRED);
        // The link is as good as before.
        onehop::RemoteRegion again = side.peer().attach(side.hear());
        move(side, true, mine, again).wait(20s);
        side.sync();
      },
      [](Side& side) {
        Buffer target(kSize, MemoryKind::kPrivate);
        onehop::Region region = side.endpoint().register_memory(target.data(), kSize);
        side.tell(region.descriptor());
        side.sync();
        region.deregister(20s);
        target.poison();
        side.sync();
        Buffer other(kSize, MemoryKind::kPrivate);
        onehop::Region again = side.endpoint().register_memory(other.data(), kSize);
        side.tell(again.descriptor());
        side.sync();
        EXPECT_TRUE(other.holds(1, kSize));
        EXPECT_TRUE(target.bytes() == onehop::Bytes(kSize, 0xee)) << "touched afterwards";
      });
}

#if defined(OH_THREAD_SANITIZER)
constexpr oh_path kPaths[] = {OH_PATH_UCX};
#else
constexpr oh_path kPaths[] = {OH_PATH_UCX, OH_PATH_SOCKET};
#endif
INSTANTIATE_TEST_SUITE_P(Gpu, GpuRegionsBetweenHosts, ::testing::ValuesIn(kPaths),
                         [](const auto& test) {
                           return test.param == OH_PATH_UCX ? "ucx_tcp" : "no_segment";
                         });

}  // namespace
}  // namespace conformance
