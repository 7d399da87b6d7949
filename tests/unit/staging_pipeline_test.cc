// SPDX-License-Identifier: Apache-2.0
//
// StagingPipeline on the fake driver, over a link with only a channel.
#include "path/staging/staging_pipeline.h"

#include <deque>

#include "unit/fake_gpu.h"
#include "unit/fake_link.h"

namespace unit::staging_pipeline_test {
namespace {

using namespace oh;

constexpr uint64_t kBuffer = 4096;
constexpr auto kOut = StagingDirection::kOut;
constexpr auto kIn = StagingDirection::kIn;

// ---- The next step of one message ---------------------------------------------------------------

class StagingTransferTest : public ::testing::Test {
 protected:
  using Step = StagingTransfer::Step;
  StagingTransferTest() {
    transfer_.request = &request_;
    transfer_.length = 10000;
    memory_.resize(3 * kBuffer);
  }
  void add_chunk(uint64_t size) {
    PooledBuffer buffer{};
    buffer.data = memory_.data() + transfer_.begun;
    transfer_.chunks.push_back({.begin = transfer_.begun, .size = size, .buffer = buffer});
    transfer_.begun += size;
  }
  Request request_;
  StagingTransfer transfer_;
  Bytes memory_;
};

TEST_F(StagingTransferTest, ASenderTakesBuffersForWhatWasGranted) {
  EXPECT_EQ(transfer_.next_step(2), Step::kNothing) << "nothing was granted";
  request_.granted = 5000;
  EXPECT_EQ(transfer_.next_step(2), Step::kTake);
  EXPECT_EQ(transfer_.next_size(kBuffer), kBuffer);
  add_chunk(kBuffer);
  EXPECT_EQ(transfer_.next_step(2), Step::kCopy);
  transfer_.chunks.back().value = 1;
  EXPECT_EQ(transfer_.next_step(2), Step::kTake);
  EXPECT_EQ(transfer_.next_step(1), Step::kNothing) << "one chunk at a time";
  EXPECT_EQ(transfer_.next_size(kBuffer), 5000 - kBuffer);
  request_.border = 4500;
  EXPECT_EQ(transfer_.next_size(kBuffer), 4500 - kBuffer) << "the receiver's buffer ends there";
}

TEST_F(StagingTransferTest, AReceiverCopiesWhatHasArrived) {
  transfer_.direction = kIn;
  transfer_.awaited = true;
  EXPECT_EQ(transfer_.next_step(1), Step::kNothing) << "the sender is not ready";
  transfer_.awaited = false;
  EXPECT_EQ(transfer_.next_step(1), Step::kTake);
  add_chunk(kBuffer);
  EXPECT_EQ(transfer_.next_step(1), Step::kNothing);
  transfer_.there = kBuffer - 1;
  EXPECT_EQ(transfer_.next_copy(), nullptr);
  transfer_.there = kBuffer;
  EXPECT_EQ(transfer_.next_copy(), &transfer_.chunks.front());
  EXPECT_EQ(transfer_.next_step(1), Step::kCopy);
}

TEST_F(StagingTransferTest, BytesGoWhereTheyWereAskedFor) {
  transfer_.direction = kIn;
  add_chunk(kBuffer);
  add_chunk(kBuffer);
  EXPECT_EQ(transfer_.place(0, kBuffer), memory_.data());
  EXPECT_EQ(transfer_.place(kBuffer + 8, 8), memory_.data() + kBuffer + 8);
  EXPECT_EQ(transfer_.place(kBuffer - 8, 16), nullptr) << "over the end of a chunk";
  EXPECT_EQ(transfer_.place(2 * kBuffer, 1), nullptr);
  EXPECT_EQ(transfer_.place(8, UINT64_MAX), nullptr);
  transfer_.chunks.front().value = 1;
  EXPECT_EQ(transfer_.place(0, 8), nullptr) << "the engine copies it";
}

TEST_F(StagingTransferTest, ASenderSendsWhatTheEngineHasCopied) {
  request_.granted = transfer_.length;
  add_chunk(kBuffer);
  EXPECT_TRUE(transfer_.filled(0, kBuffer).empty());
  transfer_.copied = kBuffer;
  EXPECT_EQ(transfer_.filled(0, kBuffer).size(), kBuffer);
  EXPECT_EQ(transfer_.filled(0, 100).size(), 100u) << "the limit";
  EXPECT_EQ(transfer_.filled(100, kBuffer).data(), memory_.data() + 100);
  EXPECT_TRUE(transfer_.filled(kBuffer, 2 * kBuffer).empty());
}

TEST_F(StagingTransferTest, WhatHasStoppedDoesNothing) {
  request_.granted = transfer_.length;
  transfer_.failure = error(OH_ERR_CANCELLED, "cancelled");
  EXPECT_EQ(transfer_.next_step(1), Step::kNothing);
  transfer_.failure = {};
  transfer_.withdrawn = true;
  EXPECT_EQ(transfer_.next_step(1), Step::kNothing);
  transfer_.withdrawn = false;
  transfer_.busy = true;
  EXPECT_EQ(transfer_.next_step(1), Step::kNothing);
  EXPECT_FALSE(transfer_.is_quiet());
}

TEST_F(StagingTransferTest, AReceiveIsWholeWithItsLastByte) {
  EXPECT_FALSE(transfer_.is_whole());
  transfer_.direction = kIn;
  EXPECT_FALSE(transfer_.is_whole());
  transfer_.there = transfer_.length;
  EXPECT_TRUE(transfer_.is_whole());
  transfer_.withdrawn = true;
  EXPECT_FALSE(transfer_.is_whole());
}

// ---- The pipeline -------------------------------------------------------------------------------

class StagingPipelineTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    link.gpu = gpu;
    link.staging_depth = 2;
    use_buffers(4);
  }
  void TearDown() override {
    pipeline->close();
    EXPECT_TRUE(pipeline->empty());
    EXPECT_EQ(fakes.polled(), 0);
    EXPECT_EQ(link.staging->stats().in_use, 0u);
    pipeline.reset();
    link.staging.reset();
    link.gpu.reset();
    for (DeviceBuffer& buffer : buffers) gpu->free(buffer.address);
    GpuTest::TearDown();
  }
  // Limits the buffers of each direction.
  void use_buffers(uint32_t most) {
    link.staging = std::make_shared<StagingPool>(gpu, kBuffer, most);
    pipeline = std::make_unique<StagingPipeline>(link);
  }
  struct DeviceBuffer {
    cuda::DevicePtr address;
    uint64_t size;
  };
  cuda::DevicePtr allocate(uint64_t size) {
    Result<cuda::DevicePtr> made = gpu->allocate(size);
    EXPECT_TRUE(is_ok(made));
    buffers.push_back({*made, size});
    return *made;
  }
  Request& request(OpKind kind, cuda::DevicePtr memory, uint64_t size) {
    Request& made = requests.emplace_back();
    made.kind = kind;
    made.on_device = true;
    made.data = reinterpret_cast<uint8_t*>(memory);
    made.size = size;
    if (kind == OpKind::kSend) ++link.pending_sends;
    return made;
  }
  void progress() {
    link.lock.lock();
    (void)pipeline->progress();
    link.lock.unlock();
  }
  template <typename Condition>
  bool comes(Condition condition) {
    return eventually([&] {
      progress();
      return condition();
    });
  }
  std::vector<uint64_t> granted() const {
    std::vector<uint64_t> found;
    for (const Frame& frame : fakes.channel->frames) {
      if (frame.type == FrameType::kCts) found.push_back(frame.length);
    }
    return found;
  }
  // The bytes of a message arrive up to `end`, as far as there are buffers.
  void arrive(Request& receive, const Bytes& bytes, uint64_t end) {
    StagedCopy& copy = *receive.staged;
    while (copy.there < end) {
      const uint64_t size = std::min(end - copy.there, kBuffer - copy.there % kBuffer);
      uint8_t* place = StagingPipeline::place(copy, copy.there, size);
      ASSERT_NE(place, nullptr) << "at " << copy.there;
      std::memcpy(place, bytes.data() + copy.there, size);
      copy.there += size;
    }
  }

  FakeLink fakes;
  Link& link = fakes.link;
  std::unique_ptr<StagingPipeline> pipeline;
  std::deque<Request> requests;
  std::vector<DeviceBuffer> buffers;
};

TEST_F(StagingPipelineTest, ASendIsReadInChunks) {
  const Bytes bytes = Random(1).bytes(3 * kBuffer + 100);
  const cuda::DevicePtr memory = allocate(bytes.size());
  ASSERT_TRUE(fake.write(memory, bytes));
  Request& send = request(OpKind::kSend, memory, bytes.size());
  pipeline->begin(&send, kOut, 7, bytes.size());
  EXPECT_EQ(fakes.polled(), 1);
  progress();
  EXPECT_EQ(link.staging->stats().in_use, 0u) << "the receiver has no room yet";
  send.granted = bytes.size();
  Bytes read;
  while (read.size() < bytes.size()) {
    ByteView part;
    ASSERT_TRUE(comes([&] { return !(part = pipeline->filled(send, send.granted)).empty(); }));
    EXPECT_LE(link.staging->stats().in_use, 2u) << "the depth of the pipeline";
    read.insert(read.end(), part.begin(), part.end());
    send.moved += part.size();
  }
  EXPECT_EQ(read, bytes);
  link.finish(send, {});
  EXPECT_TRUE(comes([&] { return pipeline->empty(); }));
}

TEST_F(StagingPipelineTest, AReceiveEndsWithItsLastChunk) {
  const Bytes bytes = Random(2).bytes(2 * kBuffer + 100);
  const cuda::DevicePtr memory = allocate(bytes.size());
  Request& receive = request(OpKind::kRecv, memory, bytes.size());
  pipeline->begin(&receive, kIn, 9, bytes.size());
  ASSERT_TRUE(comes([&] { return granted() == std::vector<uint64_t>{kBuffer, 2 * kBuffer}; }));
  EXPECT_EQ(StagingPipeline::place(*receive.staged, 2 * kBuffer, 1), nullptr) << "not granted";
  arrive(receive, bytes, 2 * kBuffer);
  ASSERT_TRUE(comes([&] { return granted().back() == bytes.size(); }));
  arrive(receive, bytes, bytes.size());
  ASSERT_TRUE(comes([&] { return receive.ended(); }));
  EXPECT_TRUE(is_ok(receive.status));
  EXPECT_EQ(receive.nbytes, bytes.size());
  EXPECT_EQ(fake.bytes_at(memory, bytes.size()), bytes);
}

TEST_F(StagingPipelineTest, WithoutABufferAMessageWaitsForItsTurn) {
  use_buffers(1);
  const Bytes bytes = Random(3).bytes(kBuffer);
  Request& first = request(OpKind::kRecv, allocate(kBuffer), kBuffer);
  Request& second = request(OpKind::kRecv, allocate(kBuffer), kBuffer);
  pipeline->begin(&first, kIn, 1, kBuffer);
  pipeline->begin(&second, kIn, 2, kBuffer);
  ASSERT_TRUE(comes([&] { return !granted().empty(); }));
  for (int i = 0; i < 10; ++i) progress();
  ASSERT_EQ(granted().size(), 1u);
  arrive(first, bytes, kBuffer);
  ASSERT_TRUE(comes([&] { return first.ended() && granted().size() == 2; }));
  arrive(second, bytes, kBuffer);
  EXPECT_TRUE(comes([&] { return second.ended(); }));
}

TEST_F(StagingPipelineTest, WhatWasStoppedEndsWhenTheEngineHas) {
  const Bytes bytes = Random(4).bytes(kBuffer);
  Request& receive = request(OpKind::kRecv, allocate(kBuffer), kBuffer);
  pipeline->begin(&receive, kIn, 1, kBuffer);
  ASSERT_TRUE(comes([&] { return !granted().empty(); }));
  const cuda::Stream stream = receive.staged->ticket.stream();
  ASSERT_EQ(fake.hold(stream), 0);
  arrive(receive, bytes, kBuffer);
  ASSERT_TRUE(comes([&] { return receive.staged->copying(); }));
  pipeline->stop(*receive.staged, error(OH_ERR_CANCELLED, "cancelled"));
  EXPECT_TRUE(pipeline->has_stopped(kIn));
  EXPECT_FALSE(pipeline->has_stopped(kOut));
  EXPECT_EQ(pipeline->next_stopped(kIn), nullptr) << "the engine still copies";
  EXPECT_TRUE(pipeline->at_work(Deadline::never()));
  EXPECT_FALSE(pipeline->at_work(Deadline::after(0)));
  ASSERT_EQ(fake.release(stream), 0);
  ASSERT_TRUE(eventually([&] { return pipeline->next_stopped(kIn) == &receive; }));
  link.finish(receive, error(OH_ERR_CANCELLED, "cancelled"));
  EXPECT_EQ(pipeline->next_stopped(kIn), nullptr);
  EXPECT_FALSE(pipeline->has_stopped(kIn));
  EXPECT_TRUE(comes([&] { return pipeline->empty(); }));
}

TEST_F(StagingPipelineTest, AFailedCopyStopsTheMessage) {
  Request& send = request(OpKind::kSend, allocate(kBuffer), kBuffer);
  pipeline->begin(&send, kOut, 7, kBuffer);
  send.granted = kBuffer;
  ASSERT_EQ(fake.fail("cuMemcpyAsync", 1, cuda::kInvalidValue), 0);
  ASSERT_TRUE(comes([&] { return pipeline->next_stopped(kOut) == &send; }));
  EXPECT_NE(send.staged->failure.text().find("cuMemcpyAsync"), std::string::npos);
  EXPECT_TRUE(pipeline->filled(send, kBuffer).empty());
  link.finish(send, Status(send.staged->failure));
  EXPECT_TRUE(comes([&] { return pipeline->empty(); }));
}

// At the end of a link a receive whose bytes have all arrived is still copied.
TEST_F(StagingPipelineTest, TheEndOfTheLinkStopsWhatIsNotWhole) {
  const Bytes bytes = Random(5).bytes(kBuffer);
  Request& whole = request(OpKind::kRecv, allocate(kBuffer), kBuffer);
  Request& part = request(OpKind::kRecv, allocate(kBuffer), kBuffer);
  pipeline->begin(&whole, kIn, 1, kBuffer);
  pipeline->begin(&part, kIn, 2, kBuffer);
  ASSERT_TRUE(comes([&] { return granted().size() == 2; }));
  arrive(whole, bytes, kBuffer);
  const Status lost = error(OH_ERR_PEER_LOST, "the other side ended");
  ASSERT_TRUE(eventually([&] { return pipeline->stop_all(lost, Deadline::never()); }));
  pipeline->end_receives(lost, /*whole=*/false);
  EXPECT_TRUE(part.ended());
  EXPECT_EQ(part.status.code(), OH_ERR_PEER_LOST);
  EXPECT_FALSE(whole.ended());
  ASSERT_TRUE(comes([&] { return whole.ended(); }));
  EXPECT_TRUE(is_ok(whole.status));
  EXPECT_TRUE(comes([&] { return pipeline->empty(); }));
}

}  // namespace
}  // namespace unit::staging_pipeline_test
