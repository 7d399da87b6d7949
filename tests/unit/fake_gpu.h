// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver in the unit tests: two devices, and memory of every kind.
//
// Threading: any thread.
#pragma once

#include <dlfcn.h>

#include <memory>
#include <string>
#include <vector>

#include "device/after.h"
#include "fake_cuda/control.h"
#include "platform/cuda/gpu.h"
#include "unit/support.h"

namespace oh::cuda {
struct TestFunctions {
#define OH_UNIT_MEMBER(name, symbol, parameters) Code(*name) parameters = nullptr;
  OH_CUDA_TEST_FUNCTIONS(OH_UNIT_MEMBER)
#undef OH_UNIT_MEMBER
};
}  // namespace oh::cuda

namespace unit {

// The driver with the entry points that allocate, and the fake's controls.
struct FakeGpu : oh::cuda::TestFunctions {
  const oh::cuda::Driver* driver = nullptr;
#define OH_UNIT_CONTROL(X) \
  X(counts)                \
  X(calls)                 \
  X(fail)                  \
  X(clear_failures) X(peek) X(poke) X(hold) X(release) X(hold_all) X(release_all) X(captured)
#define OH_UNIT_MEMBER(name) decltype(&fake_cuda_##name) name = nullptr;
  OH_UNIT_CONTROL(OH_UNIT_MEMBER)
#undef OH_UNIT_MEMBER

  static FakeGpu& get() {
    static FakeGpu* const only = new FakeGpu;
    return *only;
  }

  FakeCudaCounts now() const {
    FakeCudaCounts made{};
    counts(&made);
    return made;
  }
  oh::Bytes bytes_at(uint64_t address, size_t size) const {
    oh::Bytes bytes(size);
    if (peek(address, bytes.data(), size) != 0) bytes.clear();
    return bytes;
  }
  bool write(uint64_t address, const oh::Bytes& bytes) const {
    return poke(address, bytes.data(), bytes.size()) == 0;
  }

 private:
  FakeGpu();
};

std::string text_of(const FakeCudaCounts& counts);

// Runs a disabled test of this program in a new process, with `text` in its environment and the
// descriptors as kFirstFd and up. Returns whether it succeeded. (CUDA does not survive fork().)
constexpr int kFirstFd = 100;
constexpr char kChildText[] = "ONEHOP_UNIT_CHILD";
::testing::AssertionResult run_child(const std::string& test, const std::string& text,
                                     const std::vector<oh::UniqueFd>& fds);

// A test on device 0; it must leave as many driver objects as it found.
class GpuTest : public ::testing::Test {
 protected:
  void SetUp() override {
    before_ = text_of(fake.now());
    oh::Result<std::shared_ptr<oh::cuda::Gpu>> opened = oh::cuda::Gpu::open(*fake.driver, "cuda");
    ASSERT_TRUE(is_ok(opened));
    gpu = *opened;
  }
  void TearDown() override {
    fake.clear_failures();
    gpu.reset();
    EXPECT_EQ(text_of(fake.now()), before_);
  }
  uint64_t calls(const char* symbol) const { return fake.calls(symbol); }
  // Waits until `stream` has completed all its work.
  ::testing::AssertionResult finish(oh::cuda::Stream stream) const {
    oh::cuda::Enter enter(*gpu);
    oh::cuda::Code code = fake.driver->stream_synchronize(stream);
    if (code == oh::cuda::kSuccess) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << "cuStreamSynchronize: " << code;
  }
  // Enqueues work of `stream` on `memory` that completes only after fake.release(stream).
  void hold(oh::cuda::Stream stream, oh::cuda::DevicePtr memory) const {
    ASSERT_EQ(fake.hold(stream), 0);
    oh::cuda::Enter enter(*gpu);
    ASSERT_EQ(fake.driver->memset8_async(memory, 3, 16, stream), oh::cuda::kSuccess);
  }
  // The same; returns the After of an operation that must wait for the work.
  oh::After behind_held(oh::cuda::Stream stream, oh::cuda::DevicePtr memory) const {
    hold(stream, memory);
    oh::Result<oh::cuda::Event> behind = gpu->event_behind(stream);
    EXPECT_TRUE(is_ok(behind));
    return behind.ok() ? oh::After(gpu, *behind, /*owned=*/true) : oh::After();
  }

  FakeGpu& fake = FakeGpu::get();
  std::shared_ptr<oh::cuda::Gpu> gpu;

 private:
  std::string before_;
};

}  // namespace unit
