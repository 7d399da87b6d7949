// SPDX-License-Identifier: Apache-2.0
//
// The CUDA seam: the driver's table, devices, the objects that a Gpu keeps ready, and pinned
// memory.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "platform/cuda/current.h"
#include "platform/cuda/pointer.h"
#include "unit/fake_gpu.h"

namespace cuda_seam_test {
namespace {

using namespace oh;
using namespace oh::cuda;
using ::testing::HasSubstr;
using unit::eventually;
using unit::fails_with;
using unit::FakeGpu;
using unit::is_ok;

TEST(CudaDriverTest, AMissingLibraryIsNamedWithTheRemedy) {
  Status status = Driver::open("/nowhere/libcuda.so.1").status();
  EXPECT_TRUE(fails_with(status, OH_ERR_NOT_VIABLE, "/nowhere/libcuda.so.1"));
  EXPECT_THAT(status.text(), HasSubstr("ONEHOP_CUDA_LIBRARY"));
}

TEST(CudaDriverTest, AMissingEntryPointIsNamed) {
  Status status = Driver::open("libm.so.6").status();
  EXPECT_TRUE(fails_with(status, OH_ERR_NOT_VIABLE, "libm.so.6 lacks cuInit"));
  EXPECT_THAT(status.text(), HasSubstr("install a newer driver"));
}

TEST(CudaDriverTest, CanBeSwitchedOff) {
  EXPECT_TRUE(fails_with(Driver::open("off"), OH_ERR_NOT_VIABLE, "switched off"));
}

TEST(CudaDriverTest, IsOpenedOncePerPath) {
  FakeGpu& fake = FakeGpu::get();
  uint64_t before = fake.calls("cuInit");
  Result<const Driver*> again = Driver::open(FAKE_CUDA_LIBRARY);
  ASSERT_TRUE(is_ok(again));
  EXPECT_EQ(*again, fake.driver);
  EXPECT_EQ(fake.calls("cuInit"), before);
  EXPECT_GE(fake.driver->version, 12000);
}

TEST(CudaDriverTest, AChildOfForkGetsAStatus) {
  FakeGpu& fake = FakeGpu::get();
  Result<std::shared_ptr<Gpu>> gpu = Gpu::open(*fake.driver, 0);
  ASSERT_TRUE(is_ok(gpu));
  pid_t child = fork();
  if (child == 0) {
    bool good = Driver::open(FAKE_CUDA_LIBRARY).status().code() == OH_ERR_FORKED &&
                Gpu::open(*fake.driver, 0).status().code() == OH_ERR_FORKED &&
                list_devices(*fake.driver).status().code() == OH_ERR_FORKED;
    Enter enter(**gpu);
    good = good && enter.status().code() == OH_ERR_FORKED;
    _exit(good ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(CudaDriverTest, AChildForkedWhileAnotherThreadOpensTheDriverGetsAStatus) {
  EXPECT_EQ(unit::open_in_child_while_loading(Driver::open), OH_ERR_FORKED);
}

TEST(CudaDriverTest, AFailureSaysWhatWasTriedAndWhatToDo) {
  const Driver& driver = *FakeGpu::get().driver;
  Status status = driver.failure(kOutOfMemory, symbol::ipc_open, "5 bytes");
  EXPECT_TRUE(fails_with(status, OH_ERR_NO_RESOURCE, "cuIpcOpenMemHandle_v2(5 bytes) failed: "));
  EXPECT_THAT(status.text(), HasSubstr("(2)"));
  EXPECT_THAT(status.text(), HasSubstr("nvidia-smi"));
  EXPECT_EQ(driver.failure(kDeinitialized, "x", {}).code(), OH_ERR_CLOSED);
  EXPECT_EQ(driver.failure(kContextIsDestroyed, "x", {}).code(), OH_ERR_CLOSED);
  EXPECT_EQ(driver.failure(kPeerAccessUnsupported, "x", {}).code(), OH_ERR_NOT_VIABLE);
  EXPECT_EQ(driver.failure(kInvalidValue, "x", {}).code(), OH_ERR_FAULT);
  EXPECT_EQ(driver.failure(12345, "x", {}).code(), OH_ERR_SYSTEM);
}

TEST(CudaDriverTest, StickyIsWhatEndsTheContext) {
  const Driver& driver = *FakeGpu::get().driver;
  for (Code code : {214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911}) {
    EXPECT_TRUE(is_sticky(code)) << code;
    EXPECT_EQ(driver.failure(code, "x", {}).code(), OH_ERR_DEVICE) << code;
  }
  for (Code code : {0, 1, 2, 4, 201, 600, 701, 704, 709, 712, 720, 800, 900, 999}) {
    EXPECT_FALSE(is_sticky(code)) << code;
  }
}

TEST(CudaDeviceTest, DevicesAreListedAndNamed) {
  const Driver& driver = *FakeGpu::get().driver;
  Result<std::vector<DeviceFacts>> devices = list_devices(driver);
  ASSERT_TRUE(is_ok(devices));
  ASSERT_EQ(devices->size(), 2u);
  const std::string uuid = uuid_text(devices->at(1).uuid);
  EXPECT_EQ(uuid.size(), 40u);
  EXPECT_NE(uuid, uuid_text(devices->at(0).uuid));
  EXPECT_EQ(devices->at(0).name, "Fake GPU");
  for (const std::string& name : {std::string("cuda:1"), uuid}) {
    Result<std::shared_ptr<Gpu>> gpu = Gpu::open(driver, name);
    ASSERT_TRUE(is_ok(gpu)) << name;
    EXPECT_EQ((*gpu)->facts().ordinal, 1);
  }
  for (const char* name : {"cuda:2", "cuda:", "cuda:-1", "cuda:1x", "GPU-0", "cpu", ""}) {
    Status status = Gpu::open(driver, name).status();
    EXPECT_TRUE(fails_with(status, OH_ERR_INVALID, uuid)) << name;
  }
  EXPECT_TRUE(fails_with(Gpu::open(driver, 7), OH_ERR_INVALID, "cuda:7"));
}

TEST(CudaDeviceTest, TheThreadsDeviceIsFound) {
  const Driver& driver = *FakeGpu::get().driver;
  EXPECT_TRUE(fails_with(current_device(driver), OH_ERR_NOT_VIABLE, "cudaSetDevice"));
  for (int ordinal : {1, 0}) {
    Result<std::shared_ptr<Gpu>> gpu = Gpu::open(driver, ordinal);
    ASSERT_TRUE(is_ok(gpu));
    Enter enter(**gpu);
    Result<int> found = current_device(driver);
    ASSERT_TRUE(is_ok(found));
    EXPECT_EQ(*found, ordinal);
  }
}

class CudaGpuTest : public unit::GpuTest {
 protected:
  DevicePtr allocate(size_t size) {
    Enter enter(*gpu);
    DevicePtr address = 0;
    EXPECT_EQ(fake.driver->memory_alloc(&address, size), kSuccess);
    return address;
  }
  void free(DevicePtr address) {
    Enter enter(*gpu);
    EXPECT_EQ(fake.driver->memory_free(address), kSuccess);
  }
};

TEST_F(CudaGpuTest, ThereIsOneObjectPerDevice) {
  Result<std::shared_ptr<Gpu>> same = Gpu::open(*fake.driver, "cuda:0");
  ASSERT_TRUE(is_ok(same));
  EXPECT_EQ(*same, gpu);
  EXPECT_EQ(fake.now().contexts, 1u);
}

TEST_F(CudaGpuTest, WhatOpensHalfwayIsUndone) {
  gpu.reset();
  for (const char* call : {"cuDevicePrimaryCtxRetain", "cuStreamCreate", "cuMemHostRegister_v2",
                           "cuMemHostGetDevicePointer_v2", "cuCtxPushCurrent_v2"}) {
    ASSERT_EQ(fake.fail(call, 1, kOutOfMemory), 0) << call;
    EXPECT_TRUE(fails_with(Gpu::open(*fake.driver, 0), OH_ERR_NO_RESOURCE, call)) << call;
    FakeCudaCounts counts = fake.now();
    EXPECT_EQ(counts.contexts + counts.streams + counts.host_registrations, 0u) << call;
    fake.clear_failures();
  }
}

TEST_F(CudaGpuTest, EnterMakesTheContextCurrentAndUndoesIt) {
  Context current = nullptr;
  ASSERT_EQ(fake.driver->context_get_current(&current), kSuccess);
  EXPECT_EQ(current, nullptr);
  {
    Enter enter(*gpu);
    ASSERT_TRUE(is_ok(enter.status()));
    ASSERT_EQ(fake.driver->context_get_current(&current), kSuccess);
    EXPECT_EQ(current, gpu->context());
    int mode = kCaptureGlobal;
    ASSERT_EQ(fake.driver->exchange_capture_mode(&mode), kSuccess);
    EXPECT_EQ(mode, kCaptureRelaxed);
    ASSERT_EQ(fake.driver->exchange_capture_mode(&mode), kSuccess);
    uint64_t pushes = calls("cuCtxPushCurrent_v2");
    Enter again(*gpu);
    EXPECT_EQ(calls("cuCtxPushCurrent_v2"), pushes);
  }
  ASSERT_EQ(fake.driver->context_get_current(&current), kSuccess);
  EXPECT_EQ(current, nullptr);
  int mode = kCaptureRelaxed;
  ASSERT_EQ(fake.driver->exchange_capture_mode(&mode), kSuccess);
  EXPECT_EQ(mode, kCaptureGlobal);
  ASSERT_EQ(fake.driver->exchange_capture_mode(&mode), kSuccess);
}

TEST_F(CudaGpuTest, StreamsEventsAndWordsAreUsedAgain) {
  size_t ready = gpu->open_objects();
  EXPECT_EQ(ready, 5u);  // four streams, a page of words
  Result<Stream> stream = gpu->take_stream();
  ASSERT_TRUE(is_ok(stream));
  gpu->give_stream(*stream);
  EXPECT_EQ(*gpu->take_stream(), *stream);
  gpu->give_stream(*stream);
  EXPECT_EQ(gpu->open_objects(), ready);
  Result<Event> event = gpu->take_event();
  ASSERT_TRUE(is_ok(event));
  gpu->give_event(*event);
  EXPECT_EQ(*gpu->take_event(), *event);
  gpu->give_event(*event);
  std::vector<DoneWord> words;
  for (int i = 0; i < 100; ++i) {
    Result<DoneWord> word = gpu->take_word();
    ASSERT_TRUE(is_ok(word));
    EXPECT_EQ(reinterpret_cast<uint64_t>(word->host) % 64, 0u);
    EXPECT_EQ(word->host->load(), 0u);
    for (const DoneWord& other : words) EXPECT_NE(other.host, word->host);
    word->host->store(7);
    words.push_back(*word);
  }
  for (DoneWord& word : words) gpu->give_word(word);
  EXPECT_EQ(gpu->take_word()->host->load(), 0u);
  EXPECT_EQ(gpu->open_objects(), ready + 2);  // an event, another page
}

TEST_F(CudaGpuTest, IdleStreamsAreBounded) {
  std::vector<Stream> streams;
  for (int i = 0; i < 80; ++i) streams.push_back(*gpu->take_stream());
  EXPECT_EQ(fake.now().streams, 80u);
  for (Stream stream : streams) gpu->give_stream(stream);
  EXPECT_EQ(fake.now().streams, 64u);
}

TEST_F(CudaGpuTest, TheWordIsWrittenAfterTheCopy) {
  DevicePtr from = allocate(1 << 20);
  DevicePtr to = allocate(1 << 20);
  Bytes bytes = unit::Random(5).bytes(1 << 20);
  ASSERT_TRUE(fake.write(from, bytes));
  Stream stream = *gpu->take_stream();
  Stream producer = *gpu->take_stream();
  DoneWord word = *gpu->take_word();
  hold(producer, from);
  Result<Event> behind = gpu->event_behind(producer);
  ASSERT_TRUE(is_ok(behind));
  ASSERT_NE(*behind, nullptr);
  ASSERT_TRUE(is_ok(gpu->copy(stream, to, from, bytes.size(), *behind, word.device, 42)));
  EXPECT_FALSE(*gpu->is_idle(stream));
  EXPECT_FALSE(*gpu->is_complete(*behind));
  EXPECT_EQ(word.host->load(), 0u);
  ASSERT_EQ(fake.release(producer), 0);
  EXPECT_TRUE(eventually([&] { return word.host->load(std::memory_order_acquire) == 42; }));
  std::fill_n(bytes.begin(), 16, uint8_t{3});
  EXPECT_EQ(fake.bytes_at(to, bytes.size()), bytes);
  EXPECT_TRUE(*gpu->is_complete(*behind));
  // A copy of 0 bytes still writes the word. Without a word nothing is written.
  ASSERT_TRUE(is_ok(gpu->copy(stream, 0, 0, 0, nullptr, word.device, 43)));
  EXPECT_TRUE(eventually([&] { return word.host->load(std::memory_order_acquire) == 43; }));
  ASSERT_TRUE(is_ok(gpu->copy(stream, to, from, 8, nullptr, 0, 44)));
  EXPECT_TRUE(finish(stream));
  EXPECT_EQ(word.host->load(), 43u);
  gpu->give_event(*behind);
  gpu->give_word(word);
  gpu->give_stream(stream);
  gpu->give_stream(producer);
  free(from);
  free(to);
}

TEST_F(CudaGpuTest, BehindAnIdleStreamThereIsNoEvent) {
  Stream stream = *gpu->take_stream();
  uint64_t events = calls("cuEventCreate");
  Result<Event> none = gpu->event_behind(stream);
  ASSERT_TRUE(is_ok(none));
  EXPECT_EQ(*none, nullptr);
  EXPECT_EQ(calls("cuEventCreate"), events);
  EXPECT_TRUE(is_ok(gpu->event_behind(nullptr)));  // the default stream
  gpu->give_stream(stream);
}

TEST_F(CudaGpuTest, ACaptureIsRefusedAndSurvives) {
  Stream stream = *gpu->take_stream();
  Stream other = *gpu->take_stream();
  Enter enter(*gpu);
  ASSERT_EQ(fake.capture_begin(stream, kCaptureGlobal), kSuccess);
  EXPECT_TRUE(fails_with(gpu->event_behind(stream), OH_ERR_INVALID, "captured into a graph"));
  // Our own work on another stream continues.
  EXPECT_TRUE(is_ok(gpu->event_behind(other)));
  EXPECT_TRUE(is_ok(gpu->is_idle(other)));
  Graph graph = nullptr;
  EXPECT_EQ(fake.capture_end(stream, &graph), kSuccess);
  EXPECT_EQ(fake.graph_destroy(graph), kSuccess);
  gpu->give_stream(stream);
  gpu->give_stream(other);
}

TEST_F(CudaGpuTest, PeersAreReachedOnceTheirContextLives) {
  EXPECT_TRUE(gpu->reach(0));
  EXPECT_FALSE(gpu->reach(1));
  EXPECT_EQ(fake.now().contexts, 1u);  // none was created for it
  {
    Result<std::shared_ptr<Gpu>> peer = Gpu::open(*fake.driver, 1);
    ASSERT_TRUE(is_ok(peer));
    EXPECT_TRUE(gpu->reach(1));
    EXPECT_EQ(fake.now().contexts, 2u);
    uint64_t enabled = calls("cuCtxEnablePeerAccess");
    EXPECT_TRUE(gpu->reach(1));
    EXPECT_EQ(calls("cuCtxEnablePeerAccess"), enabled);
  }
  EXPECT_EQ(fake.now().contexts, 1u);
}

TEST_F(CudaGpuTest, PinnedMemoryIsRegisteredOncePerProcess) {
  Result<Mapping> memory = Mapping::anonymous(16384);
  ASSERT_TRUE(is_ok(memory));
  size_t before = fake.now().host_registrations;
  {
    Result<std::shared_ptr<Pinned>> one = Pinned::of(gpu, memory->data(), 16384);
    ASSERT_TRUE(is_ok(one));
    Result<std::shared_ptr<Pinned>> two = Pinned::of(gpu, memory->data() + 8, 100);
    ASSERT_TRUE(is_ok(two));
    EXPECT_EQ(*one, *two);
    EXPECT_EQ(fake.now().host_registrations, before + 1);
    DoneWord word{reinterpret_cast<std::atomic<uint64_t>*>(memory->data() + 8192),
                  (*one)->device(memory->data() + 8192)};
    Stream stream = *gpu->take_stream();
    ASSERT_TRUE(is_ok(gpu->write_word(stream, word.device, 9)));
    EXPECT_TRUE(eventually([&] { return word.host->load() == 9; }));
    gpu->give_stream(stream);
  }
  EXPECT_EQ(fake.now().host_registrations, before);
  EXPECT_TRUE(fails_with(Pinned::of(gpu, memory->data(), 0), OH_ERR_INVALID));
}

TEST_F(CudaGpuTest, ARegistrationOfTheProgramStaysTheProgramsBusiness) {
  Result<Mapping> memory = Mapping::anonymous(4096);
  ASSERT_TRUE(is_ok(memory));
  const unsigned flags = kHostRegisterPortable | kHostRegisterDeviceMap;
  {
    Enter enter(*gpu);
    ASSERT_EQ(fake.driver->host_register(memory->data(), 4096, flags), kSuccess);
  }
  size_t before = fake.now().host_registrations;
  {
    EXPECT_TRUE(is_ok(Pinned::of(gpu, memory->data(), 4096)));
  }
  EXPECT_EQ(fake.now().host_registrations, before);
  Enter enter(*gpu);
  EXPECT_EQ(fake.driver->host_unregister(memory->data()), kSuccess);
}

TEST_F(CudaGpuTest, FailuresOfACopyAreStatuses) {
  DevicePtr memory = allocate(4096);
  Stream stream = *gpu->take_stream();
  constexpr Code kOutOfMemory = 2;
  ASSERT_EQ(fake.fail("cuStreamQuery", 1, kOutOfMemory), 0);
  EXPECT_TRUE(fails_with(gpu->is_idle(stream), OH_ERR_NO_RESOURCE, "cuStreamQuery"));
  EXPECT_FALSE(gpu->is_lost());
  EXPECT_TRUE(is_ok(gpu->loss()));
  // The user's event may belong to another context.
  Event event = *gpu->take_event();
  ASSERT_EQ(fake.fail("cuEventQuery", 1, kIllegalAddress), 0);
  EXPECT_TRUE(fails_with(gpu->is_complete(event), OH_ERR_DEVICE));
  EXPECT_FALSE(gpu->is_lost());
  gpu->give_event(event);
  // A lost context stays lost, and the first error is kept as the reason.
  ASSERT_EQ(fake.fail("cuMemcpyAsync", 1, kIllegalAddress), 0);
  EXPECT_TRUE(fails_with(gpu->copy(stream, memory, memory, 8, nullptr, 0, 0), OH_ERR_DEVICE,
                         "cuMemcpyAsync(0x"));
  EXPECT_TRUE(gpu->is_lost());
  ASSERT_EQ(fake.fail("cuStreamQuery", 1, kDeinitialized), 0);
  EXPECT_TRUE(fails_with(gpu->is_idle(stream), OH_ERR_CLOSED, "cuStreamQuery"));
  EXPECT_TRUE(fails_with(gpu->loss(), OH_ERR_DEVICE, "start a new process"));
  gpu->give_stream(stream);
  free(memory);
}

// An extra release and retain of the primary context stand for cudaDeviceReset(), which destroys
// the context and keeps its number of references.
class CudaResetTest : public CudaGpuTest {
 protected:
  void reset_device(int ordinal) {
    ASSERT_EQ(fake.driver->primary_release(ordinal), kSuccess);
    Context context = nullptr;
    ASSERT_EQ(fake.driver->primary_retain(&context, ordinal), kSuccess);
  }
  std::shared_ptr<Gpu> open_again(int ordinal) {
    Result<std::shared_ptr<Gpu>> opened = Gpu::open(*fake.driver, ordinal);
    EXPECT_TRUE(is_ok(opened));
    return opened.ok() ? *opened : nullptr;
  }
};

TEST_F(CudaResetTest, ADeviceThatWasResetIsOpenedAnew) {
  for (bool met : {true, false}) {
    reset_device(0);
    if (met) {
      EXPECT_TRUE(fails_with(gpu->allocate(8), OH_ERR_CLOSED, "cuCtxGetId"));
    }
    const std::shared_ptr<Gpu> next = open_again(0);
    ASSERT_TRUE(next);
    EXPECT_NE(next, gpu);
    EXPECT_TRUE(gpu->is_lost());
    EXPECT_EQ(open_again(0), next);
    const uint64_t freed = calls("cuStreamDestroy_v2") + calls("cuMemHostUnregister");
    const size_t retained = fake.now().contexts;
    gpu = next;
    EXPECT_EQ(fake.now().contexts, retained - 1) << "its reference alone";
    EXPECT_EQ(calls("cuStreamDestroy_v2") + calls("cuMemHostUnregister"), freed);
    Result<Stream> stream = gpu->take_stream();
    ASSERT_TRUE(is_ok(stream));
    EXPECT_TRUE(*gpu->is_idle(*stream));
    gpu->give_stream(*stream);
  }
}

TEST_F(CudaResetTest, ItIsOpenedAnewWhereTheLostContextIsCurrent) {
  ASSERT_EQ(fake.driver->context_push(gpu->context()), kSuccess);
  reset_device(0);
  const std::shared_ptr<Gpu> next = open_again(0);
  EXPECT_NE(next, gpu);
  Context lost = nullptr;
  EXPECT_EQ(fake.driver->context_pop(&lost), kSuccess);
  gpu = next;
}

TEST_F(CudaResetTest, PinnedMemoryIsRegisteredAnew) {
  Result<Mapping> memory = Mapping::anonymous(4096);
  ASSERT_TRUE(is_ok(memory));
  Result<std::shared_ptr<Pinned>> one = Pinned::of(gpu, memory->data(), 4096);
  ASSERT_TRUE(is_ok(one));
  reset_device(0);
  gpu = open_again(0);
  ASSERT_TRUE(gpu);
  const size_t before = fake.now().host_registrations;
  Result<std::shared_ptr<Pinned>> two = Pinned::of(gpu, memory->data(), 4096);
  ASSERT_TRUE(is_ok(two));
  EXPECT_NE(*one, *two);
  one = Status();
  EXPECT_EQ(fake.now().host_registrations, before + 1) << "the new one stays";
  Stream stream = *gpu->take_stream();
  const DevicePtr word = (*two)->device(memory->data());
  ASSERT_TRUE(is_ok(gpu->write_word(stream, word, 9)));
  auto* host = reinterpret_cast<std::atomic<uint64_t>*>(memory->data());
  EXPECT_TRUE(eventually([&] { return host->load() == 9; }));
  gpu->give_stream(stream);
  two = Status();
  EXPECT_EQ(fake.now().host_registrations, before);
}

TEST_F(CudaResetTest, PeerAccessIsEnabledAnew) {
  std::shared_ptr<Gpu> peer = open_again(1);
  ASSERT_TRUE(peer);
  for (bool held : {true, false}) {
    EXPECT_TRUE(gpu->reach(1));
    held ? reset_device(1) : peer.reset();
    peer = open_again(1);
    ASSERT_TRUE(peer);
    const uint64_t enabled = calls("cuCtxEnablePeerAccess");
    EXPECT_TRUE(gpu->reach(1));
    EXPECT_EQ(calls("cuCtxEnablePeerAccess"), enabled + 1);
  }
}

// The driver may give the same addresses again: what a lost context had is not freed.
TEST_F(CudaResetTest, MemoryOfALostContextIsNotFreed) {
  Result<DevicePtr> memory = gpu->allocate(4096);
  ASSERT_TRUE(is_ok(memory));
  Stream stream = *gpu->take_stream();
  ASSERT_EQ(fake.fail("cuStreamQuery", 1, kContextIsDestroyed), 0);
  EXPECT_TRUE(fails_with(gpu->is_idle(stream), OH_ERR_CLOSED));
  const uint64_t freed = calls("cuMemFree_v2");
  gpu->free(*memory);
  EXPECT_EQ(calls("cuMemFree_v2"), freed);
  gpu->give_stream(stream);
}

}  // namespace
}  // namespace cuda_seam_test
