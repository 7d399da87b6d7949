// SPDX-License-Identifier: Apache-2.0
//
// Kernels whose process or context ends, kernels that fail, and kernels that block nothing.
//
// Threading: one thread, plus one for each blocked call.
#include <atomic>
#include <thread>

#include "spin.h"

namespace fake_test {
namespace {

constexpr size_t kSize = 1 << 16;

// Starts a kernel that ends only by its limit; its memory lives as long as the process.
void start_for(uint64_t limit_ns) {
  static const Spin* const kSpin = new Spin;
  static const Word* const kNever = new Word;
  static const Word* const kRuns = new Word;
  Stream stream = nullptr;
  EXPECT_EQ(driver().stream_create(&stream, 0), kSuccess);
  EXPECT_EQ(kSpin->launch(stream, {kNever->address(), kRuns->address(), limit_ns}), kSuccess);
  EXPECT_TRUE(eventually([&] { return kRuns->is_set(); }));
}

FAKE_ROLE(leave_with_a_kernel) {
  static const auto* const current = new Current;  // must outlive this function
  EXPECT_NE(current->context(), nullptr);
  start_for(0);
  return 0;
}

TEST(FakeProcess, ExitDoesNotWaitForAKernel) {
  Child child("leave_with_a_kernel");
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(kill_a_kernel) {
  Context context = nullptr;
  EXPECT_EQ(driver().init(0), kSuccess);
  EXPECT_EQ(driver().primary_retain(&context, 0), kSuccess);
  EXPECT_EQ(driver().context_push(context), kSuccess);
  start_for(kLimitNs);
  DevicePtr memory = 0;
  EXPECT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  std::atomic<int> code{-1};
  std::thread thread([&] {
    EXPECT_EQ(driver().context_push(context), kSuccess);
    code = driver().memory_free(memory);
  });
  EXPECT_TRUE(eventually([&] { return driver().blocked() == 1; }));
  EXPECT_EQ(driver().primary_release(0), kSuccess);
  thread.join();
  EXPECT_EQ(code, kContextIsDestroyed);
  EXPECT_EQ(driver().running(), 0u);
  EXPECT_EQ(driver().memory_alloc(&memory, kSize), kContextIsDestroyed);
  return 0;
}

TEST(FakeProcess, AKernelIsKilledWithItsContext) {
  Child child("kill_a_kernel");
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(block_nothing) {
  static const auto* const current = new Current;
  EXPECT_NE(current->context(), nullptr);
  DevicePtr memory = 0;
  EXPECT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  start_for(kLimitNs);
  EXPECT_EQ(driver().memory_free(memory), kSuccess);
  EXPECT_EQ(driver().running(), 1u);
  return 0;
}

// A stream waits for a word, a first launch waits for that stream, and another thread's enqueue, on
// a different stream, waits for the launch: only setting the word releases them.
FAKE_ROLE(launch_first_behind_a_stream) {
  static const auto* const current = new Current;
  static const Spin* const kSpin = new Spin;
  Word go;
  Word at_once;
  at_once.set();
  Stream streams[2] = {};
  DevicePtr memory = 0;
  EXPECT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  for (Stream& stream : streams) {
    EXPECT_EQ(driver().stream_create(&stream, kStreamNonBlocking), kSuccess);
  }
  EXPECT_EQ(driver().stream_wait64(streams[0], go.address(), 1, kStreamWaitAtLeast), kSuccess);
  std::atomic<int> launched{-1};
  std::thread launch([&] {
    EXPECT_EQ(driver().context_push(current->context()), kSuccess);
    launched = kSpin->launch(streams[1], {at_once.address(), 0, kLimitNs});
  });
  EXPECT_TRUE(eventually([&] { return driver().blocked() == 1; }));
  std::atomic<int> copied{-1};
  std::thread copy([&] {
    EXPECT_EQ(driver().context_push(current->context()), kSuccess);
    copied = driver().memset8_async(memory, 7, kSize, streams[1]);
  });
  EXPECT_FALSE(soon([&] { return launched != -1 || copied != -1; }));
  go.set();
  EXPECT_EQ(driver().stream_synchronize(streams[0]), kSuccess);  // takes no launch lock
  launch.join();
  copy.join();
  EXPECT_EQ(launched, kSuccess);
  EXPECT_EQ(copied, kSuccess);
  // Launching a loaded function waits for nothing.
  Word last;
  EXPECT_EQ(driver().stream_wait64(streams[0], last.address(), 1, kStreamWaitAtLeast), kSuccess);
  EXPECT_EQ(kSpin->launch(streams[1], {at_once.address(), 0, kLimitNs}), kSuccess);
  last.set();
  for (Stream stream : streams) EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
  return 0;
}

TEST(FakeSettings, AFirstLaunchMayWaitForTheDevice) {
  Child child("launch_first_behind_a_stream", {{"FAKE_CUDA", "blocking=device"}});
  EXPECT_EQ(child.wait(), 0);
}

TEST(FakeSettings, BlockingCanBeOff) {
  Child child("block_nothing", {{"FAKE_CUDA", "blocking=off"}});
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(spin_on_freed_memory) {
  Current current;
  DevicePtr memory = 0;
  EXPECT_EQ(driver().memory_alloc(&memory, kSize), kSuccess);
  EXPECT_EQ(driver().memory_free(memory), kSuccess);
  Module module = nullptr;
  Function function = nullptr;
  EXPECT_EQ(driver().module_load(&module, "any"), kSuccess);
  EXPECT_EQ(driver().module_function(&function, module, FAKE_CUDA_SPIN), kSuccess);
  FakeCudaSpin args{memory, 0, kLimitNs};
  void* arguments[] = {&args};
  EXPECT_EQ(driver().launch_kernel(function, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr),
            kSuccess);
  EXPECT_EQ(driver().stream_synchronize(nullptr), kIllegalAddress);
  return 0;
}

TEST(FakeErrors, AKernelOnFreedMemoryBreaksTheContext) {
  Child child("spin_on_freed_memory");
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace fake_test
