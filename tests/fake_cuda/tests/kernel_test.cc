// SPDX-License-Identifier: Apache-2.0
//
// Kernels: they run concurrently; which calls a running one blocks, and which it does not.
//
// Threading: one thread, plus one for each blocked call.
#include <atomic>
#include <functional>
#include <memory>
#include <thread>

#include "spin.h"

namespace fake_test {
namespace {

constexpr size_t kSize = 1 << 16;
class FakeKernels : public ::testing::Test {
 protected:
  void SetUp() override {
    for (Stream& stream : streams_) {
      ASSERT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
    }
    ASSERT_EQ(driver().memory_alloc(&memory_, kSize), kSuccess);
  }
  void TearDown() override {
    go_.set();
    also_go_.set();
    for (Stream stream : streams_) {
      EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
      EXPECT_EQ(driver().stream_destroy(stream), kSuccess);
    }
    if (memory_ != 0) {
      EXPECT_EQ(driver().memory_free(memory_), kSuccess);
    }
    EXPECT_EQ(driver().running(), 0u);
    EXPECT_EQ(driver().blocked(), 0u);
  }

  void start() {
    ASSERT_EQ(spin_.launch(streams_[0], {go_.address(), runs_.address(), kLimitNs}), kSuccess);
    ASSERT_TRUE(eventually([&] { return runs_.is_set(); }));
    ASSERT_EQ(driver().running(), 1u);
  }
  // The call blocks until the kernel ends.
  void expect_blocked(const std::function<Code()>& call) {
    start();
    std::atomic<int> code{-1};
    std::thread thread([&] { code = in_context(call); });
    EXPECT_TRUE(eventually([&] { return driver().blocked() == 1 || code != -1; }));
    EXPECT_EQ(driver().blocked(), 1u);
    EXPECT_EQ(code, -1);
    go_.set();
    thread.join();
    EXPECT_EQ(code, kSuccess);
  }
  Code in_context(const std::function<Code()>& call) const {
    EXPECT_EQ(driver().context_push(current_.context()), kSuccess);
    const Code code = call();
    EXPECT_EQ(driver().context_pop(nullptr), kSuccess);
    return code;
  }

  Current current_;
  Word go_;
  Word also_go_;
  Word runs_;
  Word also_runs_;
  Spin spin_;
  Stream streams_[2] = {};
  DevicePtr memory_ = 0;
};

TEST_F(FakeKernels, ThoseOfTwoStreamsRunAtOnce) {
  Spin other;
  // Each waits for the other to run.
  ASSERT_EQ(driver().hold(streams_[0]), 0);
  ASSERT_EQ(spin_.launch(streams_[0], {go_.address(), runs_.address(), kLimitNs}), kSuccess);
  ASSERT_EQ(other.launch(streams_[1], {runs_.address(), go_.address(), kLimitNs}), kSuccess);
  ASSERT_TRUE(eventually([&] { return go_.is_set(); }));
  EXPECT_EQ(driver().stream_query(streams_[1]), kNotReady);
  ASSERT_EQ(driver().release(streams_[0]), 0);
  EXPECT_TRUE(eventually([&] {
    return driver().stream_query(streams_[0]) == kSuccess &&
           driver().stream_query(streams_[1]) == kSuccess;
  }));
}

TEST_F(FakeKernels, ASpinningOneIsReadyWhenItsWordIsSetOrItsTimeIsOver) {
  start();
  EXPECT_EQ(driver().stream_query(streams_[0]), kNotReady);
  go_.set();
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  // A word in device memory, written by another stream; and a kernel that only its limit ends.
  ASSERT_EQ(spin_.launch(streams_[0], {memory_, 0, kLimitNs}), kSuccess);
  ASSERT_TRUE(eventually([&] { return driver().running() == 1; }));
  ASSERT_EQ(driver().stream_write64(streams_[1], memory_, 1, kStreamWriteDefault), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  ASSERT_EQ(driver().memset8(memory_, 0, 8), kSuccess);
  ASSERT_EQ(spin_.launch(streams_[0], {memory_, 0, 1'000'000}), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
}

TEST_F(FakeKernels, BlockAnotherFunctionsFirstLaunch) {
  Spin first;
  also_go_.set();
  expect_blocked([&] { return first.launch(streams_[1], {also_go_.address(), 0, kLimitNs}); });
}

TEST_F(FakeKernels, BlockLoadingAModule) {
  Module module = nullptr;
  expect_blocked([&] { return driver().module_load(&module, "any"); });
  EXPECT_EQ(driver().module_unload(module), kSuccess);
}

TEST_F(FakeKernels, BlockUnloadingAModule) {
  Module module = nullptr;
  ASSERT_EQ(driver().module_load(&module, "any"), kSuccess);
  expect_blocked([&] { return driver().module_unload(module); });
}

TEST_F(FakeKernels, BlockAFree) {
  expect_blocked([&] { return driver().memory_free(memory_); });
  EXPECT_EQ(driver().memory_free(memory_), kInvalidValue);
  memory_ = 0;
}

TEST_F(FakeKernels, BlockUnregisteringHostMemory) {
  const auto page = std::make_unique<char[]>(4096);
  ASSERT_EQ(driver().host_register(page.get(), 4096, kHostRegisterDeviceMap), kSuccess);
  expect_blocked([&] { return driver().host_unregister(page.get()); });
  EXPECT_EQ(driver().host_unregister(page.get()), kHostMemoryNotRegistered);
}

TEST_F(FakeKernels, BlockSynchronizingTheContext) {
  expect_blocked([&] { return driver().context_synchronize(); });
}

TEST_F(FakeKernels, LetAllElsePass) {
  Spin other;
  also_go_.set();
  ASSERT_EQ(other.launch(streams_[1], {also_go_.address(), 0, kLimitNs}), kSuccess);
  ASSERT_EQ(driver().stream_synchronize(streams_[1]), kSuccess);
  const uint64_t launches = driver().calls("cuLaunchKernel");
  start();
  const auto bytes = pattern(kSize, 21);
  std::vector<char> there(kSize);
  DevicePtr another = 0;
  Stream stream = nullptr;
  Event event = nullptr;
  ASSERT_EQ(driver().memory_alloc(&another, kSize), kSuccess);
  ASSERT_EQ(driver().host_register(there.data(), kSize, kHostRegisterDeviceMap), kSuccess);
  ASSERT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
  ASSERT_EQ(driver().event_create(&event, kEventDisableTiming), kSuccess);
  ASSERT_EQ(
      driver().memcpy_async(another, reinterpret_cast<DevicePtr>(bytes.data()), kSize, stream),
      kSuccess);
  ASSERT_EQ(driver().event_record(event, stream), kSuccess);
  ASSERT_EQ(driver().stream_wait_event(streams_[1], event, 0), kSuccess);
  ASSERT_EQ(driver().memcpy_async(memory_, another, kSize, streams_[1]), kSuccess);
  ASSERT_EQ(driver().stream_synchronize(streams_[1]), kSuccess);
  ASSERT_EQ(driver().event_synchronize(event), kSuccess);
  EXPECT_EQ(peek(memory_, kSize), bytes);
  ASSERT_EQ(driver().memcpy_sync(reinterpret_cast<DevicePtr>(there.data()), memory_, kSize),
            kSuccess);
  EXPECT_EQ(there, bytes);
  DevicePtr pooled = 0;
  ASSERT_EQ(driver().alloc_async(&pooled, kSize, stream), kSuccess);
  ASSERT_EQ(driver().free_async(pooled, stream), kSuccess);
  ASSERT_EQ(driver().stream_synchronize(stream), kSuccess);
  // A launch of a loaded function.
  ASSERT_EQ(other.launch(streams_[1], {also_go_.address(), also_runs_.address(), kLimitNs}),
            kSuccess);
  ASSERT_EQ(driver().stream_synchronize(streams_[1]), kSuccess);
  EXPECT_TRUE(also_runs_.is_set());
  ASSERT_EQ(driver().event_destroy(event), kSuccess);
  ASSERT_EQ(driver().stream_destroy(stream), kSuccess);
  EXPECT_EQ(driver().running(), 1u);  // throughout
  EXPECT_EQ(driver().calls("cuLaunchKernel"), launches + 2);
  go_.set();
  EXPECT_EQ(driver().host_unregister(there.data()), kSuccess);
  EXPECT_EQ(driver().memory_free(another), kSuccess);
}

TEST_F(FakeKernels, BlockNothingOnAnotherDeviceNorWhileTheyAreQueued) {
  Event event = nullptr;
  ASSERT_EQ(driver().event_create(&event, kEventDisableTiming), kSuccess);
  ASSERT_EQ(driver().hold(streams_[1]), 0);
  ASSERT_EQ(driver().memset8_async(memory_, 1, kSize, streams_[1]), kSuccess);
  ASSERT_EQ(driver().event_record(event, streams_[1]), kSuccess);
  ASSERT_EQ(driver().stream_wait_event(streams_[0], event, 0), kSuccess);
  ASSERT_EQ(spin_.launch(streams_[0], {go_.address(), runs_.address(), kLimitNs}), kSuccess);
  DevicePtr memory = 0;
  ASSERT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  EXPECT_EQ(driver().memory_free(memory), kSuccess);
  EXPECT_FALSE(runs_.is_set());
  ASSERT_EQ(driver().release(streams_[1]), 0);
  ASSERT_TRUE(eventually([&] { return runs_.is_set(); }));
  Current other(1);
  ASSERT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  Spin there;
  EXPECT_EQ(driver().memory_free(memory), kSuccess);
  EXPECT_EQ(driver().context_synchronize(), kSuccess);
  EXPECT_EQ(driver().running(), 1u);
  EXPECT_EQ(driver().event_destroy(event), kSuccess);
}

TEST_F(FakeKernels, BlockUntilNoneRunsForAMoment) {
  Spin other;
  also_go_.set();
  ASSERT_EQ(other.launch(streams_[1], {also_go_.address(), 0, kLimitNs}),
            kSuccess);  // a loaded function
  ASSERT_EQ(driver().stream_synchronize(streams_[1]), kSuccess);
  Word last_go;
  Word last_runs;
  start();
  std::atomic<int> code{-1};
  std::thread thread([&] { code = in_context([&] { return driver().memory_free(memory_); }); });
  EXPECT_TRUE(eventually([&] { return driver().blocked() == 1; }));
  // A kernel that began before the other ended keeps blocking the call; one that begins later does
  // not.
  EXPECT_EQ(other.launch(streams_[1], {last_runs.address(), also_runs_.address(), kLimitNs}),
            kSuccess);
  EXPECT_TRUE(eventually([&] { return also_runs_.is_set(); }));
  go_.set();
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_EQ(driver().blocked(), 1u);
  EXPECT_EQ(code, -1);
  EXPECT_EQ(other.launch(streams_[1], {last_go.address(), 0, kLimitNs}), kSuccess);
  last_runs.set();
  thread.join();
  EXPECT_EQ(code, kSuccess);
  memory_ = 0;
  EXPECT_EQ(driver().stream_query(streams_[1]), kNotReady);
  last_go.set();
  EXPECT_EQ(driver().stream_synchronize(streams_[1]), kSuccess);
}

TEST_F(FakeKernels, FunctionsAreOfTheirModule) {
  Module module = nullptr;
  Function function = nullptr;
  int threads = 0;
  ASSERT_EQ(driver().module_load(&module, "any"), kSuccess);
  ASSERT_EQ(driver().module_function(&function, module, FAKE_CUDA_SPIN), kSuccess);
  EXPECT_NE(function, spin_.function());
  EXPECT_EQ(driver().module_function(&function, module, "nothing"), kNotFound);
  ASSERT_EQ(driver().function_attribute(&threads, kFunctionMostThreads, function), kSuccess);
  EXPECT_EQ(threads, 1024);
  ASSERT_EQ(driver().module_unload(module), kSuccess);
  FakeCudaSpin args{};
  void* arguments[] = {&args};
  EXPECT_EQ(driver().launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr),
            kInvalidHandle);
}

}  // namespace
}  // namespace fake_test
