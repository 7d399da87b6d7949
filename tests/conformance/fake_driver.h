// SPDX-License-Identifier: Apache-2.0
//
// Controls of the fake CUDA driver for the conformance tests: open objects of a process, injected
// failures, held streams, and links between two of its devices.
//
// Threading: any thread. Only in processes forked by the tests: see run_apart().
#pragma once

#include <stdlib.h>
#include <unistd.h>

#include <atomic>
#include <string>

#include "base/sync.h"
#include "conformance/sides.h"
#include "fake_cuda/control.h"

namespace conformance {

struct FakeDriver {
#define CONFORMANCE_CONTROL(X) \
  X(counts)                    \
  X(calls) X(fail) X(clear_failures) X(peek) X(poke) X(hold_all) X(release_all) X(delay) X(blocks)
#define CONFORMANCE_MEMBER(name) decltype(&fake_cuda_##name) name = nullptr;
  CONFORMANCE_CONTROL(CONFORMANCE_MEMBER)
#undef CONFORMANCE_MEMBER
};
const FakeDriver& fake_driver();

// Open objects of this process.
struct Open {
  FakeCudaCounts driver{};
  size_t descriptors = 0;

  static Open now();
  // Waits until no more objects are being closed.
  static Open settled();
  std::string text() const;
  bool operator==(const Open& other) const { return text() == other.text(); }
};
// Waits until the same objects are open as before: some are closed after the last event that tests
// can wait for.
::testing::AssertionResult comes_back_to(const Open& before, bool with_descriptors = true);

// A blocked stream, the work behind it, and an event after that work.
class Blocked {
 public:
  Blocked() : stream_(make_stream()), event_(make_event()) { block_stream(stream_, &go_); }
  ~Blocked() {
    release();
    destroy_event(event_);
    destroy_stream(stream_);
  }
  Blocked(const Blocked&) = delete;
  Blocked& operator=(const Blocked&) = delete;
  // Enqueues a copy that fills the buffer after the stream is released.
  void then_fill(Buffer& buffer, Buffer& from) {
    copy_on(stream_, buffer.data(), from.data(), buffer.size());
  }
  onehop::After after(bool by_event) {
    if (!by_event) return onehop::After::stream(stream_);
    record_event(event_, stream_);
    return onehop::After::event(event_);
  }
  void release() { go_.store(true); }

 private:
  std::atomic<bool> go_{false};
  void* stream_;
  void* event_;
};

// A file for FAKE_CUDA_STATE, through which the processes of a test share the devices' memory.
class SharedDevices {
 public:
  SharedDevices() {
    char name[] = "/tmp/onehop_fake_cuda_XXXXXX";
    int fd = mkstemp(name);
    if (fd >= 0) close(fd);
    path_ = name;
  }
  ~SharedDevices() { unlink(path_.c_str()); }
  SharedDevices(const SharedDevices&) = delete;
  SharedDevices& operator=(const SharedDevices&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Memory of this kind on both sides, each on its own device.
LinkKind between_gpus(MemoryKind kind);
// The same without shared memory, over UCX on tcp or over the control socket.
LinkKind between_hosts(oh_path path, LinkKind kind);
// Every kind of message path between devices.
std::vector<LinkKind> device_message_kinds();
#if defined(OH_THREAD_SANITIZER)  // slow: only the kind with the most threads and the longest paths
inline constexpr MemoryKind kDeviceKinds[] = {MemoryKind::kAsync};
#else
inline constexpr MemoryKind kDeviceKinds[] = {MemoryKind::kMalloc, MemoryKind::kVmm,
                                              MemoryKind::kPool, MemoryKind::kAsync,
                                              MemoryKind::kManaged};
#endif
const char* memory_name(MemoryKind kind);

}  // namespace conformance
