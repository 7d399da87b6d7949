// SPDX-License-Identifier: Apache-2.0
//
// The fake CUDA driver beyond CUDA, for the conformance tests: what a process has open, calls that
// fail, streams that stand still. And the links between two of its devices.
//
// Threading: any thread. Only in processes that the tests forked: see run_apart().
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
  X(counts) X(calls) X(fail) X(clear_failures) X(peek) X(poke) X(hold_all) X(release_all) X(delay)
#define CONFORMANCE_MEMBER(name) decltype(&fake_cuda_##name) name = nullptr;
  CONFORMANCE_CONTROL(CONFORMANCE_MEMBER)
#undef CONFORMANCE_MEMBER
};
const FakeDriver& fake_driver();

// What this process has open.
struct Open {
  FakeCudaCounts driver{};
  size_t descriptors = 0;

  static Open now();
  // Once nothing is being closed any more.
  static Open settled();
  std::string text() const;
  bool operator==(const Open& other) const { return text() == other.text(); }
};
// Waits until what is open is what was: closing happens behind what tests can wait for.
::testing::AssertionResult comes_back_to(const Open& before, bool with_descriptors = true);

// A stream that does nothing until it is let go, and what waits behind it.
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
  // Later work fills the buffer, and the event is behind that.
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

// A file for FAKE_CUDA_STATE: with it the processes of a test share the devices' memory.
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

// Memory of this kind at both sides, each on a device of its own.
LinkKind between_gpus(MemoryKind kind);
// The same without shared memory, by UCX over tcp or by the control socket.
LinkKind between_hosts(oh_path path, LinkKind kind);
// All ways of a message between devices.
std::vector<LinkKind> device_message_kinds();
#if defined(OH_THREAD_SANITIZER)  // slow: the kind that takes most threads and longest ways
inline constexpr MemoryKind kDeviceKinds[] = {MemoryKind::kAsync};
#else
inline constexpr MemoryKind kDeviceKinds[] = {MemoryKind::kMalloc, MemoryKind::kVmm,
                                              MemoryKind::kPool, MemoryKind::kAsync,
                                              MemoryKind::kManaged};
#endif
const char* memory_name(MemoryKind kind);

}  // namespace conformance
