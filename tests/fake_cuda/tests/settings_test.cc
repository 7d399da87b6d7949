// SPDX-License-Identifier: Apache-2.0
//
// Devices, contexts, visibility, settings, fork, and leaks at exit.
//
// Threading: one thread.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>

#include "support.h"

namespace fake_test {
namespace {

std::string uuid(Device device) {
  Uuid out{};
  EXPECT_EQ(driver().device_uuid(&out, device), kSuccess);
  return std::string(out.bytes, sizeof(out.bytes));
}

std::string uuid_text(const std::string& bytes) {
  std::string text = "GPU-";
  for (size_t i = 0; i < bytes.size(); ++i) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(bytes[i]));
    text += (i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "") + std::string(digits);
  }
  return text;
}

// Expects `number` devices, the first with this UUID.
FAKE_ROLE(look_at_devices) {
  const Message message = receive(socket);
  int count = 0;
  EXPECT_EQ(driver().device_count(&count), kNotInitialized);
  EXPECT_EQ(driver().init(0), message.number == 0 ? kNoDevice : kSuccess);
  if (message.number == 0) return 0;
  EXPECT_EQ(driver().device_count(&count), kSuccess);
  EXPECT_EQ(static_cast<uint64_t>(count), message.number);
  EXPECT_EQ(uuid(0), std::string(message.handle, 16));
  char name[64];
  EXPECT_EQ(driver().device_name(name, sizeof(name), 0), kSuccess);
  EXPECT_STREQ(name, "H200");
  return 0;
}

TEST(FakeDevices, VisibilityPermutesAndHides) {
  ASSERT_EQ(driver().init(0), kSuccess);
  const std::string zero = uuid(0);
  const std::string one = uuid(1);
  EXPECT_NE(zero, one);
  struct Case {
    std::string visible;
    uint64_t count;
    std::string first;
  };
  const Case cases[] = {{"1,0", 2, one},          {"1", 1, one},
                        {uuid_text(one), 1, one}, {uuid_text(zero).substr(0, 12), 1, zero},
                        {"0,7,1", 1, zero},       {"", 0, ""}};
  for (const Case& one_case : cases) {
    SCOPED_TRACE(one_case.visible);
    Child child("look_at_devices",
                {{"CUDA_VISIBLE_DEVICES", one_case.visible}, {"FAKE_CUDA", "devices=2,name=H200"}});
    Message message;
    message.number = one_case.count;
    memcpy(message.handle, one_case.first.data(), one_case.first.size());
    child.send(message);
    EXPECT_EQ(child.wait(), 0);
  }
}

FAKE_ROLE(look_at_peers) {
  int can = -1;
  EXPECT_EQ(driver().init(0), kSuccess);
  EXPECT_EQ(driver().device_can_access_peer(&can, 0, 1), kSuccess);
  EXPECT_EQ(can, 1);
  EXPECT_EQ(driver().device_can_access_peer(&can, 0, 2), kSuccess);
  EXPECT_EQ(can, 0);
  Current two(2);
  Current one(1);
  Current zero(0);
  EXPECT_EQ(driver().context_enable_peer(one.context(), 0), kSuccess);
  EXPECT_EQ(driver().context_enable_peer(one.context(), 0), kPeerAccessAlreadyEnabled);
  EXPECT_EQ(driver().context_enable_peer(two.context(), 0), kPeerAccessUnsupported);
  return 0;
}

TEST(FakeDevices, PeersAreAsTheMatrixSays) {
  Child child("look_at_peers", {{"FAKE_CUDA", "devices=4,p2p=0-1+2-3"}});
  EXPECT_EQ(child.wait(), 0);
}

TEST(FakeDevices, PrimaryContextsAreCounted) {
  ASSERT_EQ(driver().init(0), kSuccess);
  unsigned flags = 9;
  int active = 9;
  Context context = nullptr;
  DevicePtr memory = 0;
  EXPECT_EQ(driver().memory_alloc(&memory, 10), kInvalidContext);
  ASSERT_EQ(driver().primary_state(1, &flags, &active), kSuccess);
  EXPECT_EQ(active, 0);
  {
    Current first(1);
    Current second(1);
    EXPECT_EQ(first.context(), second.context());
    ASSERT_EQ(driver().context_get_current(&context), kSuccess);
    EXPECT_EQ(context, first.context());
    ASSERT_EQ(driver().primary_state(1, &flags, &active), kSuccess);
    EXPECT_EQ(active, 1);
  }
  EXPECT_EQ(driver().primary_release(1), kInvalidContext);
  EXPECT_EQ(driver().context_push(context), kInvalidContext);
  EXPECT_EQ(driver().context_get_current(&context), kSuccess);
  EXPECT_EQ(context, nullptr);
}

TEST(FakeDevices, CodesHaveNames) {
  const char* text = nullptr;
  ASSERT_EQ(driver().error_name(kIllegalAddress, &text), kSuccess);
  EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
  EXPECT_EQ(driver().error_string(12345, &text), kInvalidValue);
}

FAKE_ROLE(initialise) { return driver().init(0) == kSuccess ? 0 : 1; }

TEST(FakeSettings, BadOnesEndTheProcess) {
  for (const char* text : {"devices=0", "memory=lots", "unknown=1", "p2p=0", "fail=cuNothing:1:1",
                           "fail=copy", "ipc=maybe", "devices"}) {
    SCOPED_TRACE(text);
    Child child("initialise", {{"FAKE_CUDA", text}});
    EXPECT_EQ(child.wait(), -SIGABRT);
  }
}

FAKE_ROLE(without_sharing) {
  Current current;
  DevicePtr memory = 0;
  IpcHandle handle;
  AllocationHandle vmm = 0;
  const AllocationProp prop{
      kAllocationPinned, kHandleTypePosixFd, {kLocationDevice, 0}, nullptr, {}};
  EXPECT_EQ(driver().memory_alloc(&memory, 10), kSuccess);
  EXPECT_EQ(driver().ipc_export(&handle, memory), kNotSupported);
  EXPECT_EQ(driver().vmm_create(&vmm, size_t{2} << 20, &prop, 0), kNotSupported);
  return 0;
}

TEST(FakeSettings, SharingCanBeOff) {
  Child child("without_sharing", {{"FAKE_CUDA", "ipc=off,vmm=off"}});
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(fork_after_init) {
  Current current;
  DevicePtr memory = 0;
  EXPECT_EQ(driver().memory_alloc(&memory, 4096), kSuccess);
  const pid_t pid = fork();
  if (pid == 0) {
    int count = 0;
    const bool all = driver().init(0) == kNotInitialized &&
                     driver().device_count(&count) == kNotInitialized &&
                     driver().memory_free(memory) == kNotInitialized;
    _exit(all ? 0 : 1);
  }
  int status = -1;
  waitpid(pid, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(driver().memory_free(memory), kSuccess);
  return 0;
}

TEST(FakeProcess, AForkedChildHasNoDriver) {
  Child child("fork_after_init");
  EXPECT_EQ(child.wait(), 0);
}

FAKE_ROLE(leave_with_work) {
  Current current;
  Stream stream = nullptr;
  DevicePtr memory = 0;
  EXPECT_EQ(driver().stream_create(&stream, 0), kSuccess);
  EXPECT_EQ(driver().memory_alloc(&memory, 1 << 20), kSuccess);
  for (int i = 0; i < 1000; ++i) {
    EXPECT_EQ(driver().memset8_async(memory, 1, 1 << 20, stream), kSuccess);
  }
  EXPECT_EQ(driver().stream_create(&stream, 0), kSuccess);
  EXPECT_EQ(driver().hold(stream), 0);
  EXPECT_EQ(driver().memset8_async(memory, 1, 100, stream), kSuccess);
  Context context = nullptr;
  EXPECT_EQ(driver().primary_retain(&context, 0), kSuccess);  // must outlive this function
  return 0;
}

TEST(FakeProcess, ExitDoesNotWaitForWork) {
  Child child("leave_with_work");
  EXPECT_EQ(child.wait(), 0);
}

class Leaks : public ::testing::Environment {
  void TearDown() override {
    FakeCudaCounts counts;
    driver().counts(&counts);
    const FakeCudaCounts none{};
    EXPECT_EQ(memcmp(&counts, &none, sizeof(none)), 0) << "a test left objects";
  }
};

}  // namespace

::testing::Environment* new_leak_check() { return new Leaks; }

}  // namespace fake_test
