// SPDX-License-Identifier: Apache-2.0
//
// Streams and events: order, asynchrony, stream writes, errors, capture.
//
// Threading: one thread, but where a test starts another.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <thread>

#include "support.h"

namespace fake_test {
namespace {

constexpr size_t kSize = 100000;
// Time in which a stream that is not held would have finished; on a slow machine the test may miss
// a fault, but never fails wrongly.
constexpr std::chrono::milliseconds kWhile{20};

class FakeStream : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_EQ(driver().memory_alloc(&one_, kSize), kSuccess);
    ASSERT_EQ(driver().memory_alloc(&two_, kSize), kSuccess);
    for (Stream& stream : streams_) {
      ASSERT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
    }
    ASSERT_EQ(driver().event_create(&event_, kEventDisableTiming), kSuccess);
  }
  void TearDown() override {
    EXPECT_EQ(driver().event_destroy(event_), kSuccess);
    for (Stream stream : streams_) EXPECT_EQ(driver().stream_destroy(stream), kSuccess);
    EXPECT_EQ(driver().memory_free(one_), kSuccess);
    EXPECT_EQ(driver().memory_free(two_), kSuccess);
  }

  Current current_;
  DevicePtr one_ = 0;
  DevicePtr two_ = 0;
  Stream streams_[2] = {};
  Event event_ = nullptr;
};

TEST_F(FakeStream, CopiesHappenLaterAndInOrder) {
  const auto bytes = pattern(kSize, 3);
  poke(one_, bytes);
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  ASSERT_EQ(driver().memcpy_async(two_, one_, kSize, streams_[0]), kSuccess);
  ASSERT_EQ(driver().memset8_async(one_, 7, kSize, streams_[0]), kSuccess);
  std::this_thread::sleep_for(kWhile);
  EXPECT_EQ(driver().stream_query(streams_[0]), kNotReady);
  EXPECT_EQ(peek(two_, kSize), std::vector<char>(kSize));
  ASSERT_EQ(driver().release(streams_[0]), 0);
  ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_EQ(driver().stream_query(streams_[0]), kSuccess);
  EXPECT_EQ(peek(two_, kSize), bytes);
  EXPECT_EQ(peek(one_, kSize), std::vector<char>(kSize, 7));
}

// Word accesses by kernels are atomic; otherwise ThreadSanitizer would report a race.
TEST_F(FakeStream, ACopyOfAWordSeesOneThatIsWrittenMeanwhileWhole) {
  constexpr uint64_t kRounds = 1'000;
  for (uint64_t round = 1; round <= kRounds; ++round) {
    const uint64_t both = round << 32 | round;
    ASSERT_EQ(driver().stream_write64(streams_[0], one_, both, 0), kSuccess);
    ASSERT_EQ(driver().memcpy_async(two_, one_, sizeof(both), streams_[1]), kSuccess);
  }
  ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  uint64_t seen = 0;
  ASSERT_EQ(
      driver().memcpy_async(reinterpret_cast<DevicePtr>(&seen), two_, sizeof(seen), streams_[1]),
      kSuccess);
  EXPECT_EQ(seen >> 32, seen & 0xffffffff);
  EXPECT_LE(seen >> 32, kRounds);
}

TEST_F(FakeStream, TheLegacyStreamAndBlockingStreamsFollowEachOther) {
  Stream blocking = nullptr;
  ASSERT_EQ(driver().stream_create(&blocking, 0), kSuccess);
  for (Stream stream : {blocking, reinterpret_cast<Stream>(2)}) {  // CU_STREAM_PER_THREAD
    ASSERT_EQ(driver().hold(stream), 0);
    ASSERT_EQ(driver().memset8_async(one_, 7, kSize, stream), kSuccess);
    ASSERT_EQ(driver().memcpy_async(two_, one_, kSize, nullptr), kSuccess);
    std::this_thread::sleep_for(kWhile);
    EXPECT_EQ(driver().stream_query(nullptr), kNotReady);
    ASSERT_EQ(driver().memset8_async(one_, 8, kSize, stream), kSuccess);  // after that copy
    ASSERT_EQ(driver().release(stream), 0);
    ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
    EXPECT_EQ(peek(two_, kSize), std::vector<char>(kSize, 7));
    EXPECT_EQ(peek(one_, kSize), std::vector<char>(kSize, 8));
  }
  EXPECT_EQ(driver().stream_destroy(blocking), kSuccess);
}

TEST_F(FakeStream, TheLegacyStreamIsNotBehindNonBlockingStreams) {
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  ASSERT_EQ(driver().memset8_async(one_, 7, kSize, streams_[0]), kSuccess);
  ASSERT_EQ(driver().memset8_async(two_, 5, kSize, nullptr), kSuccess);
  ASSERT_EQ(driver().stream_synchronize(nullptr), kSuccess);
  EXPECT_EQ(peek(two_, kSize), std::vector<char>(kSize, 5));
  ASSERT_EQ(driver().release(streams_[0]), 0);
  ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
}

TEST_F(FakeStream, AStreamWaitsForAnEventOfAnother) {
  poke(one_, pattern(kSize, 4));
  EXPECT_EQ(driver().event_query(event_), kSuccess);  // never recorded
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  ASSERT_EQ(driver().memset8_async(one_, 9, kSize, streams_[0]), kSuccess);
  ASSERT_EQ(driver().event_record(event_, streams_[0]), kSuccess);
  EXPECT_EQ(driver().event_query(event_), kNotReady);
  ASSERT_EQ(driver().stream_wait_event(streams_[1], event_, 0), kSuccess);
  ASSERT_EQ(driver().memcpy_async(two_, one_, kSize, streams_[1]), kSuccess);
  std::this_thread::sleep_for(kWhile);
  EXPECT_EQ(driver().stream_query(streams_[1]), kNotReady);
  ASSERT_EQ(driver().release(streams_[0]), 0);
  ASSERT_EQ(driver().stream_synchronize(streams_[1]), kSuccess);
  EXPECT_EQ(peek(two_, kSize), std::vector<char>(kSize, 9));
  EXPECT_EQ(driver().event_synchronize(event_), kSuccess);
}

TEST_F(FakeStream, EventsTellTheTimeBetweenThem) {
  float ms = -1;
  Event marks[2] = {};
  for (Event& mark : marks) ASSERT_EQ(driver().event_create(&mark, 0), kSuccess);
  EXPECT_EQ(driver().event_elapsed(&ms, marks[0], marks[1]), kInvalidHandle);  // never recorded
  ASSERT_EQ(driver().event_record(marks[0], streams_[0]), kSuccess);
  ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  ASSERT_EQ(driver().event_record(marks[1], streams_[0]), kSuccess);
  EXPECT_EQ(driver().event_elapsed(&ms, marks[0], marks[1]), kNotReady);
  std::this_thread::sleep_for(kWhile);
  ASSERT_EQ(driver().release(streams_[0]), 0);
  ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  ASSERT_EQ(driver().event_elapsed(&ms, marks[0], marks[1]), kSuccess);
  EXPECT_GE(ms, 20);
  ASSERT_EQ(driver().event_record(event_, streams_[0]), kSuccess);
  EXPECT_EQ(driver().event_elapsed(&ms, marks[0], event_),
            kInvalidHandle);  // created without timing
  for (Event mark : marks) EXPECT_EQ(driver().event_destroy(mark), kSuccess);
}

TEST_F(FakeStream, AStreamHasAnIdOfItsOwn) {
  const auto id = [](Stream stream) {
    uint64_t found = 0;
    EXPECT_EQ(driver().stream_id(stream, &found), kSuccess);
    return found;
  };
  const auto legacy = reinterpret_cast<Stream>(1);
  const auto per_thread = reinterpret_cast<Stream>(2);
  EXPECT_EQ(id(nullptr), id(legacy));
  EXPECT_EQ(id(per_thread), id(per_thread));
  EXPECT_NE(id(per_thread), id(legacy));
  EXPECT_NE(id(streams_[0]), id(streams_[1]));
  std::thread([&, ours = id(per_thread)] {
    EXPECT_EQ(driver().context_push(current_.context()), kSuccess);
    EXPECT_NE(id(per_thread), ours);
    EXPECT_EQ(id(per_thread), id(per_thread));
    EXPECT_EQ(driver().context_pop(nullptr), kSuccess);
  }).join();
  const uint64_t former = id(streams_[1]);
  const Stream handle = streams_[1];
  ASSERT_EQ(driver().stream_destroy(handle), kSuccess);
  uint64_t none = 0;
  EXPECT_EQ(driver().stream_id(handle, &none), kInvalidHandle);
  ASSERT_EQ(driver().stream_create(&streams_[1], kStreamNonBlocking), kSuccess);
  EXPECT_EQ(streams_[1], handle);
  EXPECT_NE(id(streams_[1]), former);
}

TEST_F(FakeStream, AnEventBehindAContextIsBehindAllOfItsStreams) {
  Stream gone = nullptr;
  ASSERT_EQ(driver().stream_create(&gone, kStreamNonBlocking), kSuccess);
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  driver().hold_all();
  DevicePtr to = one_;  // disjoint parts, since the streams run concurrently
  constexpr size_t kPart = kSize / 4;
  for (Stream stream : {streams_[0], gone, Stream(nullptr)}) {
    ASSERT_EQ(driver().memset8_async(to, 7, kPart, stream), kSuccess);
    to += kPart;
  }
  ASSERT_EQ(driver().stream_destroy(gone), kSuccess);
  ASSERT_EQ(driver().context_record(current_.context(), event_), kSuccess);
  ASSERT_EQ(driver().memset8_async(to, 8, kPart, streams_[1]),
            kSuccess);  // not part of the context's record
  ASSERT_EQ(driver().hold(streams_[1]), 0);
  driver().release_all();
  ASSERT_EQ(driver().stream_synchronize(nullptr), kSuccess);
  EXPECT_EQ(driver().event_query(event_), kNotReady);
  ASSERT_EQ(driver().release(streams_[0]), 0);
  while (driver().event_query(event_) == kNotReady) std::this_thread::yield();
  EXPECT_EQ(driver().event_query(event_), kSuccess);
  EXPECT_EQ(driver().stream_query(streams_[1]), kNotReady);
  ASSERT_EQ(driver().release(streams_[1]), 0);
  ASSERT_EQ(driver().stream_synchronize(streams_[1]), kSuccess);
  // It invalidates captures.
  Graph graph = nullptr;
  ASSERT_EQ(driver().capture_begin(streams_[0], kCaptureRelaxed), kSuccess);
  EXPECT_EQ(driver().context_record(current_.context(), event_), kStreamCaptureUnsupported);
  EXPECT_EQ(driver().capture_end(streams_[0], &graph), 901);
}

TEST_F(FakeStream, AnEventOfAnotherDeviceIsWaitedFor) {
  Current other(1);
  Stream stream = nullptr;
  DevicePtr there = 0;
  ASSERT_EQ(driver().stream_create(&stream, 0), kSuccess);
  ASSERT_EQ(driver().memory_alloc(&there, kSize), kSuccess);
  EXPECT_EQ(driver().event_record(event_, stream), kInvalidHandle);  // of the other context
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  ASSERT_EQ(driver().memset8_async(one_, 5, kSize, streams_[0]), kSuccess);
  ASSERT_EQ(driver().event_record(event_, streams_[0]), kSuccess);
  ASSERT_EQ(driver().stream_wait_event(stream, event_, 0), kSuccess);
  ASSERT_EQ(driver().memcpy_async(there, one_, kSize, stream), kSuccess);
  ASSERT_EQ(driver().release(streams_[0]), 0);
  ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
  EXPECT_EQ(peek(there, kSize), std::vector<char>(kSize, 5));
  EXPECT_EQ(driver().memory_free(there), kSuccess);
  EXPECT_EQ(driver().stream_destroy(stream), kSuccess);
}

TEST_F(FakeStream, AWordIsWrittenAfterTheCopyBeforeIt) {
  struct alignas(4096) Page {
    std::atomic<uint64_t> word;
    char data[8192];
  };
  auto page = std::make_unique<Page>();
  ASSERT_EQ(driver().host_register(page.get(), sizeof(Page), kHostRegisterDeviceMap), kSuccess);
  DevicePtr word = 0;
  DevicePtr data = 0;
  ASSERT_EQ(driver().host_device_pointer(&word, &page->word, 0), kSuccess);
  ASSERT_EQ(driver().host_device_pointer(&data, page->data, 0), kSuccess);
  for (uint64_t round = 1; round <= 200; ++round) {
    const auto bytes = pattern(sizeof(page->data), static_cast<unsigned>(round));
    poke(one_, bytes);
    ASSERT_EQ(driver().memcpy_async(data, one_, bytes.size(), streams_[0]), kSuccess);
    ASSERT_EQ(driver().stream_write64(streams_[0], word, round, kStreamWriteDefault), kSuccess);
    while (page->word.load(std::memory_order_acquire) != round) std::this_thread::yield();
    ASSERT_EQ(memcmp(page->data, bytes.data(), bytes.size()), 0) << round;
  }
  EXPECT_EQ(driver().stream_write64(streams_[0], word + 4, 1, 0), kInvalidValue);
  ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  ASSERT_EQ(driver().host_unregister(page.get()), kSuccess);
}

TEST_F(FakeStream, AStreamWaitsForAWord) {
  struct alignas(4096) Page {
    std::atomic<uint64_t> word;
    char data[64];
  };
  auto page = std::make_unique<Page>();
  ASSERT_EQ(driver().host_register(page.get(), sizeof(Page), kHostRegisterDeviceMap), kSuccess);
  DevicePtr word = 0;
  DevicePtr data = 0;
  ASSERT_EQ(driver().host_device_pointer(&word, &page->word, 0), kSuccess);
  ASSERT_EQ(driver().host_device_pointer(&data, page->data, 0), kSuccess);
  for (uint64_t round = 1; round <= 50; ++round) {
    const uint64_t value = 2 * round;
    ASSERT_EQ(driver().stream_wait64(streams_[0], word, value, kStreamWaitAtLeast), kSuccess);
    ASSERT_EQ(driver().memcpy_async(one_, data, sizeof(page->data), streams_[0]), kSuccess);
    // A smaller value does not satisfy the wait, a larger one does. Earlier writes are visible
    // after it.
    page->word.store(value - 1);
    EXPECT_EQ(driver().stream_query(streams_[0]), kNotReady);
    const auto bytes = pattern(sizeof(page->data), static_cast<unsigned>(round));
    memcpy(page->data, bytes.data(), bytes.size());
    page->word.store(value + round % 2, std::memory_order_release);
    ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
    ASSERT_EQ(peek(one_, bytes.size()), bytes) << round;
  }
  // Another stream may write the word, in device memory.
  poke(two_, std::vector<char>(8));
  ASSERT_EQ(driver().stream_wait64(streams_[0], two_, 7, kStreamWaitAtLeast), kSuccess);
  ASSERT_EQ(driver().memset8_async(one_, 9, kSize, streams_[0]), kSuccess);
  EXPECT_EQ(driver().stream_query(streams_[0]), kNotReady);
  ASSERT_EQ(driver().stream_write64(streams_[1], two_, 7, kStreamWriteDefault), kSuccess);
  ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_EQ(peek(one_, kSize), std::vector<char>(kSize, 9));
  // Only the flags that onehop uses are supported.
  EXPECT_EQ(driver().stream_wait64(streams_[0], word + 4, 1, kStreamWaitAtLeast), kInvalidValue);
  EXPECT_EQ(driver().stream_wait64(streams_[0], 0, 1, kStreamWaitAtLeast), kInvalidValue);
  EXPECT_EQ(driver().stream_wait64(streams_[0], word, 1, 1), kInvalidValue);
  ASSERT_EQ(driver().host_unregister(page.get()), kSuccess);
}

TEST_F(FakeStream, AHostFunctionMayNotCallTheDriver) {
  std::atomic<int> code{-1};
  ASSERT_EQ(driver().launch_host_func(
                streams_[0],
                [](void* out) {
                  static_cast<std::atomic<int>*>(out)->store(driver().stream_query(nullptr));
                },
                &code),
            kSuccess);
  ASSERT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_EQ(code, kNotPermitted);
}

TEST_F(FakeStream, CapturedWorkDoesNotRunAndUnsafeCallsEndTheCapture) {
  int status = -1;
  Graph graph = nullptr;
  ASSERT_EQ(driver().capture_begin(streams_[0], kCaptureGlobal), kSuccess);
  ASSERT_EQ(driver().memset8_async(one_, 1, kSize, streams_[0]), kSuccess);
  ASSERT_EQ(driver().event_record(event_, streams_[0]), kSuccess);
  ASSERT_EQ(driver().stream_wait_event(streams_[1], event_, 0), kSuccess);  // joins
  EXPECT_EQ(driver().captured(streams_[1]), 1);
  int mode = kCaptureRelaxed;
  ASSERT_EQ(driver().exchange_capture_mode(&mode), kSuccess);
  EXPECT_EQ(mode, kCaptureGlobal);
  DevicePtr memory = 0;
  EXPECT_EQ(driver().memory_alloc(&memory, 100), kSuccess);  // allowed in relaxed mode
  EXPECT_EQ(driver().memory_free(memory), kSuccess);
  ASSERT_EQ(driver().exchange_capture_mode(&mode), kSuccess);
  ASSERT_EQ(driver().stream_is_capturing(streams_[0], &status), kSuccess);
  EXPECT_EQ(status, 1);
  EXPECT_EQ(driver().event_query(event_), kStreamCaptureUnsupported);
  ASSERT_EQ(driver().stream_is_capturing(streams_[0], &status), kSuccess);
  EXPECT_EQ(status, 2);
  EXPECT_EQ(driver().capture_end(streams_[0], &graph), 901);
  // A capture that nothing invalidates.
  ASSERT_EQ(driver().capture_begin(streams_[0], kCaptureThreadLocal), kSuccess);
  std::thread([&] {
    EXPECT_EQ(driver().context_push(current_.context()), kSuccess);
    EXPECT_EQ(driver().stream_query(streams_[1]), kSuccess);
    EXPECT_EQ(driver().context_pop(nullptr), kSuccess);
  }).join();
  ASSERT_EQ(driver().capture_end(streams_[0], &graph), kSuccess);
  EXPECT_EQ(driver().graph_destroy(graph), kSuccess);
  EXPECT_EQ(peek(one_, kSize), std::vector<char>(kSize));
}

FAKE_ROLE(sticky_error) {
  Current current;
  Stream stream = nullptr;
  DevicePtr memory = 0;
  DevicePtr freed = 0;
  EXPECT_EQ(driver().stream_create(&stream, 0), kSuccess);
  EXPECT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  EXPECT_EQ(driver().memory_alloc(&freed, kSize + 1), kSuccess);
  EXPECT_EQ(driver().memory_free(freed), kSuccess);
  EXPECT_EQ(driver().memcpy_async(memory, freed, 10, stream), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(stream), kIllegalAddress);
  EXPECT_EQ(driver().stream_query(stream), kIllegalAddress);
  EXPECT_EQ(driver().memory_alloc(&freed, 10), kIllegalAddress);
  Current other(1);  // unaffected
  EXPECT_EQ(driver().memory_alloc(&freed, 10), kSuccess);
  return 0;
}

TEST(FakeErrors, ACopyOfFreedMemoryBreaksTheContext) {
  Child child("sticky_error");
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(injected_copy) {
  Current current;
  DevicePtr memory = 0;
  DevicePtr none = 0;
  EXPECT_EQ(driver().memory_alloc(&none, 64), kOutOfMemory);  // fail=cuMemAlloc_v2:1:2
  EXPECT_EQ(driver().memory_alloc(&memory, 64), kSuccess);
  EXPECT_EQ(driver().memcpy_sync(memory, memory + 32, 32), kSuccess);
  EXPECT_EQ(driver().memcpy_sync(memory, memory + 32, 32), kIllegalAddress);  // fail=copy:2:700
  EXPECT_EQ(driver().memcpy_sync(memory, memory + 32, 32), kIllegalAddress);
  return 0;
}

TEST(FakeErrors, FailuresAreInjected) {
  Child child("injected_copy", {{"FAKE_CUDA", "fail=cuMemAlloc_v2:1:2,fail=copy:2:700"}});
  EXPECT_EQ(child.wait(), 0);
  Current current;
  const uint64_t before = driver().calls("cuEventCreate");
  Event event = nullptr;
  ASSERT_EQ(driver().fail("cuEventCreate", 2, kUnknown), 0);
  EXPECT_EQ(driver().fail("cuNothing", 1, kUnknown), -1);
  EXPECT_EQ(driver().event_create(&event, 0), kSuccess);
  EXPECT_EQ(driver().event_destroy(event), kSuccess);
  EXPECT_EQ(driver().event_create(&event, 0), kUnknown);
  EXPECT_EQ(driver().event_create(&event, 0), kSuccess);
  EXPECT_EQ(driver().event_destroy(event), kSuccess);
  EXPECT_EQ(driver().calls("cuEventCreate"), before + 3);
  ASSERT_EQ(driver().fail("cuEventCreate", 0, kUnknown), 0);
  EXPECT_EQ(driver().event_create(&event, 0), kUnknown);
  EXPECT_EQ(driver().event_create(&event, 0), kUnknown);
  driver().clear_failures();
}

FAKE_ROLE(write_to_host_address) {
  Current current;
  alignas(4096) static uint64_t word[512];
  EXPECT_EQ(driver().host_register(word, sizeof(word), kHostRegisterDeviceMap), kSuccess);
  const auto host = reinterpret_cast<DevicePtr>(word);
  EXPECT_EQ(driver().stream_write64(nullptr, host, 1, 0), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(nullptr), kIllegalAddress);
  return 0;
}

TEST(FakeErrors, AStreamWriteToTheHostsAddressIsCaught) {
  Child child("write_to_host_address");
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(wait_for_freed_memory) {
  Current current;
  // Many streams wait, so that some of them read the word while it is freed.
  std::vector<Stream> streams(32);
  DevicePtr memory = 0;
  EXPECT_EQ(driver().memory_alloc(&memory, 64), kSuccess);
  poke(memory, std::vector<char>(64));
  for (Stream& stream : streams) {
    EXPECT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
    EXPECT_EQ(driver().stream_wait64(stream, memory, 1, kStreamWaitAtLeast), kSuccess);
    EXPECT_EQ(driver().stream_query(stream), kNotReady);
  }
  EXPECT_EQ(driver().memory_free(memory), kSuccess);
  for (const Stream stream : streams) {
    EXPECT_EQ(driver().stream_synchronize(stream), kIllegalAddress);
  }
  return 0;
}

TEST(FakeErrors, AStreamThatWaitsForFreedMemoryIsCaught) {
  Child child("wait_for_freed_memory");
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace fake_test
