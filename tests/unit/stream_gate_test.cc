// SPDX-License-Identifier: Apache-2.0
//
// StreamGates on the fake driver: when a stream continues, and when a word is reused.
#include "device/stream_gate.h"

#include <sched.h>

#include <atomic>

#include "base/fault.h"
#include "endpoint/endpoint.h"
#include "unit/fake_gpu.h"

namespace unit::stream_gate_test {
namespace {

using namespace oh;

class StreamGatesTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    stream = *gpu->take_stream();
    memory = *gpu->allocate(kSize);
    ASSERT_TRUE(fake.write(memory, Bytes(kSize)));
  }
  void TearDown() override {
    EXPECT_TRUE(finish(stream));
    gates.reap();  // they hold the Gpu
    gpu->free(memory);
    gpu->give_stream(stream);
    GpuTest::TearDown();
  }
  StreamGate* take() {
    Result<StreamGate*> taken = gates.take(gpu);
    EXPECT_TRUE(is_ok(taken));
    return *taken;
  }
  // The stream's work behind the gate.
  void fill_behind() const {
    cuda::Enter enter(*gpu);
    ASSERT_EQ(fake.driver->memset8_async(memory, 7, kSize, stream), cuda::kSuccess);
  }
  bool filled() const { return fake.bytes_at(memory, kSize) == Bytes(kSize, 7); }
  cuda::Code query() const {
    cuda::Enter enter(*gpu);
    return fake.driver->stream_query(stream);
  }

  static constexpr size_t kSize = 64;
  StreamGates& gates = StreamGates::instance();
  cuda::Stream stream = nullptr;
  cuda::DevicePtr memory = 0;
};

TEST_F(StreamGatesTest, TheStreamGoesOnOnceTheGateIsOpen) {
  StreamGate* gate = take();
  ASSERT_TRUE(is_ok(gates.enqueue(gate, stream)));
  fill_behind();
  EXPECT_EQ(query(), cuda::kNotReady);
  EXPECT_FALSE(filled());
  gate->open();
  EXPECT_TRUE(finish(stream));
  EXPECT_TRUE(filled());
}

TEST_F(StreamGatesTest, OneThatIsOpenBeforeHoldsNothingUp) {
  StreamGate* gate = take();
  gate->open();
  ASSERT_TRUE(is_ok(gates.enqueue(gate, stream)));
  fill_behind();
  EXPECT_TRUE(finish(stream));
  EXPECT_TRUE(filled());
}

TEST_F(StreamGatesTest, AWordIsUsedAgainOnceItsStreamHasPassed) {
  StreamGate* gate = take();
  const auto* word = gate->word.host;
  ASSERT_EQ(fake.hold(stream), 0);  // late: the gate is open long before the stream reaches it
  ASSERT_TRUE(is_ok(gates.enqueue(gate, stream)));
  gate->open();
  StreamGate* second = take();
  EXPECT_NE(second->word.host, word);
  ASSERT_EQ(fake.release(stream), 0);
  EXPECT_TRUE(finish(stream));
  gates.give(second);
  gates.reap();
  StreamGate* third = take();
  StreamGate* fourth = take();
  EXPECT_TRUE(third->word.host == word || fourth->word.host == word);
  EXPECT_EQ(third->word.host->load(), 0U);
  EXPECT_EQ(fourth->word.host->load(), 0U);
  gates.give(third);
  gates.give(fourth);
}

TEST_F(StreamGatesTest, OneThatIsClosedIsNeverUsedAgain) {
  StreamGate* gate = take();
  ASSERT_TRUE(is_ok(gates.enqueue(gate, stream)));
  for (int i = 0; i < 100; ++i) {
    StreamGate* other = take();
    EXPECT_NE(other->word.host, gate->word.host);
    gates.give(other);
  }
  gate->open();
}

TEST_F(StreamGatesTest, AWordThatNoStreamKnowsGoesBackAtOnce) {
  StreamGate* gate = take();
  const auto* word = gate->word.host;
  gates.give(gate);
  StreamGate* again = take();
  EXPECT_EQ(again->word.host, word);
  gates.give(again);
}

// The wait is rejected: the stream does not use the word. The request still opens the gate.
TEST_F(StreamGatesTest, AGateWhoseWaitFailedGoesBackOnceItIsOpen) {
  StreamGate* gate = take();
  const auto* word = gate->word.host;
  ASSERT_EQ(fake.fail("cuStreamWaitValue64_v2", 1, cuda::kOutOfMemory), 0);
  EXPECT_FALSE(gates.enqueue(gate, stream).ok());
  fill_behind();
  EXPECT_TRUE(finish(stream));
  StreamGate* second = take();
  EXPECT_NE(second->word.host, word);
  gates.give(second);
  gate->open();
  gates.reap();
  StreamGate* third = take();
  EXPECT_EQ(third->word.host, word);
  gates.give(third);
}

// The wait is on the stream, but not the write behind it: nothing shows when the stream has passed.
TEST_F(StreamGatesTest, AWordWhoseStreamTellsNothingIsNeverUsedAgain) {
  StreamGate* gate = take();
  const auto* word = gate->word.host;
  ASSERT_EQ(fake.fail("cuStreamWriteValue64_v2", 1, cuda::kOutOfMemory), 0);
  EXPECT_FALSE(gates.enqueue(gate, stream).ok());
  fill_behind();
  EXPECT_EQ(query(), cuda::kNotReady);
  gate->open();
  EXPECT_TRUE(finish(stream));
  EXPECT_TRUE(filled());
  gates.reap();
  StreamGate* second = take();
  EXPECT_NE(second->word.host, word);
  gates.give(second);
  gates.give(gate);  // only the test knows that it has passed
}

// A stream that waits for a word of a segment, whose link ends before the stream reaches the wait.
TEST_F(StreamGatesTest, ASegmentStaysUntilItsStreamsHavePassed) {
  auto segment = std::make_shared<PinnedSegment>();
  auto mapping = std::make_shared<Mapping>(std::move(*Mapping::anonymous(4096)));
  segment->memory = mapping;
  segment->pinned = *cuda::Pinned::of(gpu, mapping->data(), mapping->size());
  auto* word = reinterpret_cast<std::atomic<uint64_t>*>(mapping->data());
  const std::weak_ptr<PinnedSegment> alive = segment;
  ASSERT_EQ(fake.hold(stream), 0);
  ASSERT_TRUE(
      is_ok(gates.enqueue(gpu, stream, {segment->pinned->device(mapping->data()), 5, segment})));
  fill_behind();
  gates.leave(std::move(segment));
  mapping.reset();
  ASSERT_EQ(fake.release(stream), 0);
  EXPECT_EQ(query(), cuda::kNotReady);
  gates.reap();
  gates.close_unused();
  EXPECT_FALSE(alive.expired());
  word->store(6);
  EXPECT_TRUE(finish(stream));
  EXPECT_TRUE(filled());
  gates.reap();  // on a data path the segment is only returned
  EXPECT_FALSE(alive.expired());
  gates.close_unused();
  EXPECT_TRUE(alive.expired());
}

// The thread that unregisters it handles peers' deaths, whose ends release streams.
TEST_F(StreamGatesTest, NoSegmentIsUnregisteredWhileAStreamStands) {
  StreamGate* gate = take();
  ASSERT_TRUE(is_ok(gates.enqueue(gate, stream)));
  auto segment = std::make_shared<PinnedSegment>();
  const std::weak_ptr<PinnedSegment> alive = segment;
  gates.leave(std::move(segment));
  EXPECT_FALSE(alive.expired());
  gate->open();
  EXPECT_TRUE(finish(stream));
  gates.reap();
  gates.close_unused();
  EXPECT_TRUE(alive.expired());
}

TEST_F(StreamGatesTest, ASegmentThatNoStreamKnowsGoesWithItsLink) {
  auto segment = std::make_shared<PinnedSegment>();
  const std::weak_ptr<PinnedSegment> alive = segment;
  ASSERT_EQ(fake.fail("cuStreamWaitValue64_v2", 1, cuda::kOutOfMemory), 0);
  EXPECT_FALSE(gates.enqueue(gpu, stream, {memory, 1, segment}).ok());
  gates.leave(std::move(segment));
  EXPECT_TRUE(alive.expired());
}

TEST_F(StreamGatesTest, ALostDeviceWritesNothingAnyMore) {
  StreamGate* gate = take();
  const auto* word = gate->word.host;
  ASSERT_EQ(fake.hold(stream), 0);
  ASSERT_TRUE(is_ok(gates.enqueue(gate, stream)));
  ASSERT_EQ(fake.fail("cuMemcpyAsync", 1, cuda::kIllegalAddress), 0);
  EXPECT_FALSE(gpu->copy(stream, memory, memory, 8, nullptr, 0, 0).ok());
  EXPECT_TRUE(gpu->is_lost());
  StreamGate* second = take();
  EXPECT_NE(second->word.host, word) << "the request has yet to open it";
  gate->open();
  gates.reap();
  StreamGate* third = take();
  EXPECT_EQ(third->word.host, word);
  // This device is not really lost: its stream has yet to pass.
  third->open();
  ASSERT_EQ(fake.release(stream), 0);
  EXPECT_TRUE(finish(stream));
  for (StreamGate* each : {second, third}) gates.give(each);
}

// The end has taken the gate, and is late to open it; the thread that added it sees the end.
class RacedGate : public StreamGatesTest {
 protected:
  ~RacedGate() override { g_fault_hook.store(nullptr); }

  static void pass(const char* point) {
    const std::string_view passed = point;
    if (passed == "request.opens_gates") {
      is_late_.store(true);
      wait_for(may_open_);
    } else if (passed == "request.gate_added") {
      may_end_.store(true);
      wait_for(is_late_);
    }
  }
  static void wait_for(const std::atomic<bool>& flag) {
    EXPECT_TRUE(eventually([&] { return flag.load(); }));
  }

  static inline std::atomic<bool> may_end_{false};
  static inline std::atomic<bool> is_late_{false};
  static inline std::atomic<bool> may_open_{false};
};

TEST_F(RacedGate, AGateIsNotUsedAgainBeforeItsEndHasOpenedIt) {
  EndpointOptions options;
  options.device = "cuda:0";
  std::shared_ptr<Endpoint> endpoint = *Endpoint::create(
      config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}, {"ONEHOP_CUDA_LIBRARY", FAKE_CUDA_LIBRARY}}),
      options);
  Bytes bytes(100);
  Request receive;
  receive.kind = OpKind::kRecv;
  receive.endpoint = endpoint.get();
  receive.data = bytes.data();
  receive.size = bytes.size();
  ASSERT_TRUE(is_ok(endpoint->requests().post_any_source(&receive)));
  g_fault_hook.store(pass);
  Threads threads;
  threads.start([&] {
    wait_for(may_end_);
    EXPECT_TRUE(is_ok(endpoint->requests().cancel(&receive)));
  });
  ASSERT_TRUE(is_ok(endpoint->requests().stream_wait(&receive, stream)));
  EXPECT_TRUE(receive.ended());
  StreamGate* other = take();
  may_open_.store(true);
  threads.join();
  EXPECT_EQ(other->word.host->load(), 0U) << "another gate was opened";
  gates.give(other);
  endpoint->close();
}

}  // namespace
}  // namespace unit::stream_gate_test
