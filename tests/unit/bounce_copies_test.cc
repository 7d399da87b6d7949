// SPDX-License-Identifier: Apache-2.0
//
// BounceCopies on the fake driver, over a link with only a channel.
#include "path/staging/bounce_copies.h"

#include <deque>

#include "unit/fake_gpu.h"
#include "unit/fake_link.h"

namespace unit::bounce_copies_test {
namespace {

using namespace oh;

class BounceCopiesTest : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    fakes.link.gpu = gpu;
    memory = *gpu->allocate(kSize);
    producer = *gpu->take_stream();
  }
  void TearDown() override {
    EXPECT_TRUE(copies.empty());
    EXPECT_EQ(fakes.polled(), 0);
    fakes.link.gpu.reset();
    requests.clear();
    EXPECT_TRUE(finish(producer));  // else its work would write to the next test's memory
    gpu->give_stream(producer);
    gpu->free(memory);
    GpuTest::TearDown();
  }
  // A receive whose bytes have arrived in its bounce buffer.
  Request& receive(const Bytes& bytes) {
    Request& made = requests.emplace_back();
    made.kind = OpKind::kRecv;
    made.on_device = true;
    made.data = reinterpret_cast<uint8_t*>(memory);
    made.size = kSize;
    made.nbytes = bytes.size();
    std::memcpy(BounceCopies::place(made, bytes.size()), bytes.data(), bytes.size());
    return made;
  }
  // The request waits for earlier work on the memory, which completes after release(producer).
  void wait_for_producer(Request& request) { request.device.after = behind_held(producer, memory); }
  bool progress() {
    fakes.link.lock.lock();
    const bool any = copies.progress();
    fakes.link.lock.unlock();
    return any;
  }
  template <typename Condition>
  bool comes(Condition condition) {
    return eventually([&] {
      progress();
      return condition();
    });
  }

  static constexpr size_t kSize = 4096;
  FakeLink fakes;
  BounceCopies copies{fakes.link};
  std::deque<Request> requests;
  cuda::DevicePtr memory = 0;
  cuda::Stream producer = nullptr;
};

TEST_F(BounceCopiesTest, TheBytesOfHostMemoryNeedNoBuffer) {
  Request& host = requests.emplace_back();
  uint8_t there[8];
  host.data = there;
  EXPECT_EQ(BounceCopies::place(host, 8), there);
}

TEST_F(BounceCopiesTest, AReceiveEndsOnceItsBytesAreOnTheDevice) {
  const Bytes bytes = Random(1).bytes(1000);
  Request& request = receive(bytes);
  copies.add(&request);
  EXPECT_EQ(fakes.polled(), 1);
  EXPECT_TRUE(comes([&] { return request.ended(); }));
  EXPECT_TRUE(is_ok(request.status));
  EXPECT_EQ(fake.bytes_at(memory, bytes.size()), bytes);
  EXPECT_TRUE(comes([&] { return copies.empty(); }));
}

TEST_F(BounceCopiesTest, ACopyWaitsForEarlierWork) {
  const Bytes bytes = Random(2).bytes(1000);
  Request& request = receive(bytes);
  wait_for_producer(request);
  copies.add(&request);
  for (int i = 0; i < 10; ++i) progress();
  EXPECT_FALSE(request.ended());
  ASSERT_EQ(fake.release(producer), 0);
  EXPECT_TRUE(comes([&] { return request.ended(); }));
  EXPECT_EQ(fake.bytes_at(memory, bytes.size()), bytes);
  EXPECT_TRUE(comes([&] { return copies.empty(); }));
}

TEST_F(BounceCopiesTest, ACopyIsCancelledBeforeItBegins) {
  Request& request = receive(Random(3).bytes(8));
  const Status cancelled = error(OH_ERR_CANCELLED, "cancelled");
  EXPECT_FALSE(copies.cancel(&request, cancelled)) << "it is not here";
  wait_for_producer(request);
  copies.add(&request);
  progress();
  EXPECT_TRUE(copies.cancel(&request, cancelled));
  EXPECT_TRUE(request.ended());
  EXPECT_EQ(request.status.code(), OH_ERR_CANCELLED);
  ASSERT_EQ(fake.release(producer), 0);
  progress();
}

// A copy that has begun before the link ends completes normally.
TEST_F(BounceCopiesTest, TheEndOfTheLinkWaitsForTheEngine) {
  Request& waits = receive(Random(4).bytes(8));
  Request& runs = receive(Random(5).bytes(8));
  wait_for_producer(waits);
  copies.add(&runs);
  EXPECT_TRUE(progress());
  copies.add(&waits);
  const Status lost = error(OH_ERR_PEER_LOST, "the other side ended");
  EXPECT_TRUE(eventually([&] { return copies.fail_all(lost); }));
  EXPECT_TRUE(is_ok(runs.status));
  EXPECT_EQ(waits.status.code(), OH_ERR_PEER_LOST);
  ASSERT_EQ(fake.release(producer), 0);
}

TEST_F(BounceCopiesTest, AFailedCopyEndsTheReceive) {
  Request& request = receive(Random(6).bytes(8));
  ASSERT_EQ(fake.fail("cuMemcpyAsync", 1, cuda::kInvalidValue), 0);
  copies.add(&request);
  EXPECT_TRUE(comes([&] { return request.ended(); }));
  EXPECT_NE(request.status.text().find("cuMemcpyAsync"), std::string::npos);
  EXPECT_TRUE(comes([&] { return copies.empty(); }));
}

// Nor before the engine has finished the enqueued work: until then the receive owns the buffer.
TEST_F(BounceCopiesTest, AReceiveWhoseCopyFailedHalfwayEndsBehindTheEngine) {
  const Bytes bytes = Random(7).bytes(1000);
  Request& request = receive(bytes);
  ASSERT_EQ(fake.fail("cuStreamWriteValue64_v2", 1, cuda::kInvalidValue), 0);
  fake.hold_all();
  copies.add(&request);
  const Deadline long_enough = Deadline::after(2 * kSecond);
  while (!request.ended() && !long_enough.passed()) progress();
  EXPECT_FALSE(request.ended());
  fake.release_all();
  EXPECT_TRUE(comes([&] { return request.ended(); }));
  EXPECT_NE(request.status.text().find("cuStreamWriteValue64"), std::string::npos);
  EXPECT_EQ(fake.bytes_at(memory, bytes.size()), bytes);
  EXPECT_TRUE(comes([&] { return copies.empty(); }));
}

}  // namespace
}  // namespace unit::bounce_copies_test
