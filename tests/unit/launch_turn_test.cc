// SPDX-License-Identifier: Apache-2.0
//
// Which launches on a half of a lane wait for the previous one: those of another stream, whatever
// its handle.
#include "lane/launch_turn.h"

#include <optional>
#include <utility>
#include <vector>

#include "unit/fake_gpu.h"

namespace launch_turn_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

class LaunchTurnTest : public unit::GpuTest {
 protected:
  void TearDown() override {
    turn.reset();
    second.reset();
    GpuTest::TearDown();
  }
  // Returns the number of event waits that a launch on the stream enqueues.
  uint64_t waits_of(cuda::Stream stream) { return waits_of(stream, *gpu); }
  uint64_t waits_of(cuda::Stream stream, cuda::Gpu& on) {
    const uint64_t before = calls("cuStreamWaitEvent");
    launch({&*turn}, on, stream);
    return calls("cuStreamWaitEvent") - before;
  }
  static void launch(std::vector<LaunchTurn*> halves, cuda::Gpu& on, cuda::Stream stream) {
    HeldTurns turns(std::move(halves), {}, on, stream);
    EXPECT_TRUE(is_ok(turns.follow()));
    EXPECT_TRUE(is_ok(turns.launched()));
  }
  void launch_apart(Launches* launches, cuda::Stream stream) {
    HeldTurns turns({}, {launches, launches}, *gpu, stream);
    ASSERT_TRUE(is_ok(turns.follow()));
    ASSERT_TRUE(is_ok(turns.launched()));
  }
  cuda::Stream make_stream() const {
    cuda::Enter enter(*gpu);
    cuda::Stream stream = nullptr;
    EXPECT_EQ(fake.driver->stream_create(&stream, cuda::kStreamNonBlocking), cuda::kSuccess);
    return stream;
  }
  void destroy(cuda::Stream stream) const {
    cuda::Enter enter(*gpu);
    EXPECT_EQ(fake.driver->stream_destroy(stream), cuda::kSuccess);
  }

  std::optional<LaunchTurn> turn{std::in_place};
  std::optional<LaunchTurn> second{std::in_place};
};

const auto kPerThread = reinterpret_cast<cuda::Stream>(2);

TEST_F(LaunchTurnTest, AStreamWaitsForAnotherAndNotForItself) {
  const cuda::Stream one = make_stream();
  const cuda::Stream other = make_stream();
  EXPECT_EQ(waits_of(one), 0u);  // nothing was launched
  EXPECT_EQ(waits_of(one), 0u);
  EXPECT_EQ(waits_of(other), 1u);
  EXPECT_EQ(waits_of(other), 0u);
  EXPECT_EQ(waits_of(nullptr), 1u);
  EXPECT_EQ(waits_of(reinterpret_cast<cuda::Stream>(1)), 0u);  // the legacy default stream, too
  EXPECT_EQ(waits_of(one), 1u);
  destroy(one);
  destroy(other);
}

TEST_F(LaunchTurnTest, ThreadsOnTheirDefaultStreamsWaitForEachOther) {
  EXPECT_EQ(waits_of(kPerThread), 0u);
  for (int i = 0; i < 2; ++i) {
    std::thread([&] {
      EXPECT_EQ(waits_of(kPerThread), 1u);
      EXPECT_EQ(waits_of(kPerThread), 0u);
    }).join();
  }
  EXPECT_EQ(waits_of(kPerThread), 1u);
}

TEST_F(LaunchTurnTest, AStreamWaitsForADestroyedOneThatHadItsHandle) {
  const cuda::Stream one = make_stream();
  EXPECT_EQ(waits_of(one), 0u);
  destroy(one);
  const cuda::Stream next = make_stream();
  ASSERT_EQ(next, one);
  EXPECT_EQ(waits_of(next), 1u);
  destroy(next);
}

TEST_F(LaunchTurnTest, OneEventIsBehindAllHalvesOfALaunch) {
  const cuda::Stream one = make_stream();
  const uint64_t records = calls("cuEventRecord");
  for (int i = 0; i < 3; ++i) launch({&*turn, &*second}, *gpu, one);
  EXPECT_EQ(calls("cuEventRecord") - records, 3u);
  const uint64_t waits = calls("cuStreamWaitEvent");
  launch({&*turn, &*second}, *gpu, nullptr);
  EXPECT_EQ(calls("cuStreamWaitEvent") - waits, 1u);
  destroy(one);
}

// A half that continues alone leaves the shared event to the other half.
TEST_F(LaunchTurnTest, AHalfWaitsForItsOwnLaunchAlone) {
  const cuda::Stream one = make_stream();
  const cuda::Stream two = make_stream();
  launch({&*turn, &*second}, *gpu, one);
  Result<cuda::DoneWord> word = gpu->take_word();
  ASSERT_TRUE(is_ok(word));
  ASSERT_TRUE(is_ok(gpu->wait_word(two, word->device, 1)));
  launch({&*turn}, *gpu, two);
  ASSERT_TRUE(gpu->wait_idle(one, Deadline::after(10 * kSecond)));
  EXPECT_TRUE(second->is_through());
  EXPECT_FALSE(turn->is_through());
  word->host->store(1, std::memory_order_release);
  ASSERT_TRUE(gpu->wait_idle(two, Deadline::after(10 * kSecond)));
  EXPECT_TRUE(turn->is_through());
  gpu->give_word(*word);
  destroy(one);
  destroy(two);
}

// Operations that can fail are done before the launch.
TEST_F(LaunchTurnTest, TheEventIsThereBeforeTheLaunch) {
  const cuda::Stream one = make_stream();
  {
    HeldTurns turns({&*turn}, {}, *gpu, one);
    ASSERT_EQ(fake.fail("cuEventCreate", 1, cuda::kOutOfMemory), 0);
    EXPECT_TRUE(fails_with(turns.follow(), OH_ERR_NO_RESOURCE, "cuEventCreate"));
  }
  EXPECT_EQ(waits_of(one), 0u);
  destroy(one);
}

// Such a launch is over when the GPU is idle, or a later launch of its stream has ended.
TEST_F(LaunchTurnTest, ALaunchWithoutAnEventBehindItEndsWithTheWorkOfTheGpu) {
  const cuda::Stream one = make_stream();
  Result<cuda::DoneWord> word = gpu->take_word();
  ASSERT_TRUE(is_ok(word));
  for (bool again : {false, true}) {
    ASSERT_TRUE(is_ok(gpu->wait_word(one, word->device, again ? 2 : 1)));
    {
      HeldTurns turns({&*turn, &*second}, {}, *gpu, one);
      EXPECT_TRUE(is_ok(turns.follow()));
      ASSERT_EQ(fake.fail("cuEventRecord", 1, cuda::kOutOfMemory), 0);
      EXPECT_TRUE(fails_with(turns.launched(), OH_ERR_NO_RESOURCE, "cuEventRecord"));
    }
    EXPECT_FALSE(turn->is_through());
    EXPECT_TRUE(fails_with(HeldTurns({&*turn}, {}, *gpu, nullptr).follow(), OH_ERR_SYSTEM,
                           "its end is not known"));
    EXPECT_EQ(waits_of(one), 0u);
    EXPECT_FALSE(turn->is_through());
    word->host->store(again ? 2 : 1, std::memory_order_release);
    EXPECT_TRUE(unit::eventually([&] { return turn->is_through() && second->is_through(); }));
    EXPECT_EQ(waits_of(nullptr), 1u);
    ASSERT_TRUE(finish(nullptr));
  }
  gpu->give_word(*word);
  destroy(one);
}

// A stream's launches share one event, and the driver is not queried for each.
TEST_F(LaunchTurnTest, LaunchesWithoutTurnsAreOverWhenAllAre) {
  constexpr uint64_t kMany = 300;
  const cuda::Stream one = make_stream();
  Result<cuda::DoneWord> word = gpu->take_word();
  ASSERT_TRUE(is_ok(word));
  Launches apart;
  EXPECT_TRUE(apart.are_over());
  ASSERT_TRUE(is_ok(gpu->wait_word(one, word->device, 1)));
  const uint64_t asked = calls("cuEventQuery");
  const uint64_t made = calls("cuEventCreate");
  for (uint64_t i = 0; i < kMany; ++i) launch_apart(&apart, one);
  EXPECT_EQ(calls("cuEventQuery"), asked);
  EXPECT_LE(calls("cuEventCreate") - made, 1u);
  EXPECT_FALSE(apart.are_over());
  word->host->store(1, std::memory_order_release);
  ASSERT_TRUE(finish(one));
  EXPECT_TRUE(apart.are_over());
  gpu->give_word(*word);
  destroy(one);
}

// Each is queried a few times, however many streams there have been.
TEST_F(LaunchTurnTest, LaunchesOfStreamsThatAreGoneAreForgotten) {
  constexpr uint64_t kMany = 100;
  Launches apart;
  const uint64_t asked = calls("cuEventQuery");
  const uint64_t made = calls("cuEventCreate");
  for (uint64_t i = 0; i < kMany; ++i) {
    const cuda::Stream stream = make_stream();
    launch_apart(&apart, stream);
    ASSERT_TRUE(finish(stream));
    destroy(stream);
  }
  EXPECT_LE(calls("cuEventQuery") - asked, 4 * kMany);
  EXPECT_LE(calls("cuEventCreate") - made, kMany / 2);
  EXPECT_TRUE(apart.are_over());
}

// Two threads launch on one stream; the one that launched first adds its event last.
TEST_F(LaunchTurnTest, AnEarlierEventDoesNotReplaceALaterOne) {
  const cuda::Stream made = make_stream();
  const LaunchStream stream{made, gpu->stream_id(made)};
  Result<cuda::DoneWord> word = gpu->take_word();
  ASSERT_TRUE(is_ok(word));
  {
    Launches apart;
    Result<std::shared_ptr<LaunchEvent>> earlier = LaunchEvent::take(*gpu);
    Result<std::shared_ptr<LaunchEvent>> later = LaunchEvent::take(*gpu);
    ASSERT_TRUE(is_ok(earlier));
    ASSERT_TRUE(is_ok(later));
    ASSERT_TRUE(is_ok((*earlier)->record(stream.handle)));
    ASSERT_TRUE(is_ok(gpu->wait_word(stream.handle, word->device, 1)));
    ASSERT_TRUE(is_ok((*later)->record(stream.handle)));
    apart.add(stream, *later);
    apart.add(stream, *earlier);
    ASSERT_TRUE(unit::eventually([&] { return (*earlier)->is_over(); }));
    EXPECT_FALSE(apart.are_over());
    word->host->store(1, std::memory_order_release);
    ASSERT_TRUE(finish(stream.handle));
    EXPECT_TRUE(apart.are_over());
  }
  gpu->give_word(*word);
  destroy(stream.handle);
}

// Launches that take turns and launches that take none alternate, so none can reuse an event.
TEST_F(LaunchTurnTest, EventsOfAStreamThatHaveCompletedAreForgotten) {
  constexpr uint64_t kMany = 300;
  const cuda::Stream one = make_stream();
  Launches apart;
  const uint64_t made = calls("cuEventCreate");
  for (uint64_t i = 0; i < kMany; ++i) {
    {
      HeldTurns turns({&*turn}, {&apart}, *gpu, one);
      ASSERT_TRUE(is_ok(turns.follow()));
      ASSERT_TRUE(is_ok(turns.launched()));
    }
    launch_apart(&apart, one);
    ASSERT_TRUE(finish(one));
  }
  EXPECT_LE(calls("cuEventCreate") - made, kMany / 10);
  EXPECT_TRUE(apart.are_over());
  destroy(one);
}

// A stream that continues without a turn leaves its event to the half that it used.
TEST_F(LaunchTurnTest, AHalfDoesNotWaitForLaterLaunchesWithoutTurns) {
  const cuda::Stream one = make_stream();
  Result<cuda::DoneWord> word = gpu->take_word();
  ASSERT_TRUE(is_ok(word));
  Launches apart;
  {
    HeldTurns turns({&*turn}, {&apart}, *gpu, one);
    ASSERT_TRUE(is_ok(turns.follow()));
    ASSERT_TRUE(is_ok(turns.launched()));
  }
  ASSERT_TRUE(finish(one));
  ASSERT_TRUE(is_ok(gpu->wait_word(one, word->device, 1)));
  launch_apart(&apart, one);
  EXPECT_TRUE(turn->is_through());
  EXPECT_FALSE(apart.are_over());
  word->host->store(1, std::memory_order_release);
  ASSERT_TRUE(finish(one));
  EXPECT_TRUE(apart.are_over());
  gpu->give_word(*word);
  destroy(one);
}

// A query that fails does not tell whether the launch has ended.
TEST_F(LaunchTurnTest, AFailedQueryEndsNoLaunch) {
  const cuda::Stream one = make_stream();
  EXPECT_EQ(waits_of(one), 0u);
  ASSERT_TRUE(finish(one));
  ASSERT_EQ(fake.fail("cuEventQuery", 1, cuda::kOutOfMemory), 0);
  EXPECT_FALSE(turn->is_through());
  EXPECT_TRUE(turn->is_through());
  destroy(one);
}

// A driver before CUDA 12.0, and one whose query fails.
TEST_F(LaunchTurnTest, WhereTheDriverCannotTellEachLaunchWaits) {
  static cuda::Driver* const old = [] {
    auto* made = new cuda::Driver(*unit::FakeGpu::get().driver);
    made->stream_id = nullptr;
    return made;
  }();
  Result<std::shared_ptr<cuda::Gpu>> there = cuda::Gpu::open(*old, 0);
  ASSERT_TRUE(is_ok(there));
  const cuda::Stream stream = make_stream();
  EXPECT_EQ(waits_of(stream, **there), 0u);
  EXPECT_EQ(waits_of(stream, **there), 1u);
  EXPECT_EQ(waits_of(stream), 1u);
  ASSERT_EQ(fake.fail("cuStreamGetId", 1, cuda::kNotSupported), 0);
  EXPECT_EQ(waits_of(stream), 1u);
  EXPECT_EQ(waits_of(stream), 1u);  // the previous stream is unknown
  EXPECT_EQ(waits_of(stream), 0u);
  destroy(stream);
}

}  // namespace
}  // namespace launch_turn_test
