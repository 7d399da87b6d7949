// SPDX-License-Identifier: Apache-2.0
//
// Application kernels for tests: they wait for words.
//
// Threading: Word: any thread; Spin: one thread.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <thread>

#include "support.h"

namespace fake_test {

// Limit of a kernel that the test does not end: far longer than a test, shorter than the watchdog.
constexpr uint64_t kLimitNs = 30'000'000'000;

// Waits up to 30 s; no test asserts the time.
inline bool eventually(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// Whether the condition becomes true within 50 ms: for conditions that must stay false.
inline bool soon(const std::function<bool()>& condition) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(50);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::yield();
  }
  return true;
}

// A word of pinned host memory that kernels can access.
class Word {
 public:
  Word() {
    void* memory = nullptr;
    EXPECT_EQ(driver().host_alloc(&memory, sizeof(uint64_t), kHostRegisterDeviceMap), kSuccess);
    value_ = static_cast<std::atomic<uint64_t>*>(memory);
    EXPECT_EQ(driver().host_device_pointer(&address_, memory, 0), kSuccess);
  }
  ~Word() { EXPECT_EQ(driver().host_free(value_), kSuccess); }
  Word(const Word&) = delete;
  Word& operator=(const Word&) = delete;
  DevicePtr address() const { return address_; }
  // Release and acquire: the partner is the kernel.
  void set() { value_->store(1, std::memory_order_release); }
  bool is_set() const { return value_->load(std::memory_order_acquire) != 0; }

 private:
  std::atomic<uint64_t>* value_ = nullptr;
  DevicePtr address_ = 0;
};

// fake_spin in its own module, so that its first launch loads the function.
class Spin {
 public:
  Spin() {
    EXPECT_EQ(driver().module_load(&module_, "any"), kSuccess);
    EXPECT_EQ(driver().module_function(&function_, module_, FAKE_CUDA_SPIN), kSuccess);
  }
  ~Spin() { EXPECT_EQ(driver().module_unload(module_), kSuccess); }
  Spin(const Spin&) = delete;
  Spin& operator=(const Spin&) = delete;
  Function function() const { return function_; }
  Code launch(Stream stream, const FakeCudaSpin& args) const {
    FakeCudaSpin copy = args;
    void* arguments[] = {&copy};
    const Code code =
        driver().launch_kernel(function_, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
    copy = {};  // the launch has read it
    return code;
  }

 private:
  Module module_ = nullptr;
  Function function_ = nullptr;
};

}  // namespace fake_test
