// SPDX-License-Identifier: Apache-2.0
//
// Explained paths of device memory, also for messages that wait for earlier work, that find no
// slot, or that are received from any source.
#include <chrono>
#include <optional>

#include "conformance/explained.h"
#include "sanitizers.h"
#include "transport/shm/segment.h"

namespace conformance::gpu_explained {
namespace {

using namespace std::chrono_literals;

// ---- More messages than there are slots -------------------------------------------------------

class ExplainedWithoutSlots : public ExplainedPaths {};

// From host to device memory: messages without a slot travel as frames, and both sides report that.
TEST_P(ExplainedWithoutSlots, OfMessages) {
  constexpr size_t kSize = 65'536;
  constexpr size_t kMany = oh::kSlots + 20;
  run([](Side& side) {
    const Rows rows(side.peer());
    const Between between{"host", "device"};
    const bool first = side.number() == 0;
    Buffer buffer = make(side, GetParam().memory[side.number()].front(), kSize);
    first ? buffer.fill(1) : buffer.poison();
    uint8_t last = 0;
    if (!first) side.peer().recv(&last, 1, 1, 20s);
    std::vector<onehop::Request> requests;
    for (size_t i = 0; i < kMany; ++i) {
      requests.push_back(first ? side.peer().isend(buffer.data(), kSize)
                               : side.peer().irecv(buffer.data(), kSize));
    }
    // Sends leave in order: all earlier ones were announced before this one.
    if (first) side.peer().send(&last, 1, 1, 20s);
    for (size_t i = 0; i < kMany; ++i) {
      const oh_path path = requests[i].wait(20s).path;
      if (!first) {
        side.tell_number(path);
        continue;
      }
      EXPECT_EQ(path, side.hear_number());
      if (i < oh::kSlots) {
        EXPECT_TRUE(is_among(path, rows.allowed("message", between, kSize))) << i;
      } else {
        EXPECT_EQ(path, side.peer().info().path) << i;
      }
    }
    if (!first) {
      EXPECT_TRUE(buffer.holds(1, kSize));
    }
  });
}

// ---- Earlier work that is pending when both sides have posted ----------------------------------

class ExplainedPending : public ExplainedPaths {};

// The side whose memory waits for earlier work.
enum class Pends { kSource, kTarget, kBoth };

struct PendingCase {
  Pends pends;
  bool receive_first;
};

std::string text_of(const PendingCase& given) {
  return std::string(given.pends == Pends::kSource   ? "source"
                     : given.pends == Pends::kTarget ? "target"
                                                     : "both") +
         " pending, " + (given.receive_first ? "receive" : "send") + " first";
}

// Returns the path of a message from one side, for which both sides have posted before the earlier
// work is released.
oh_path pass_pending(Side& side, bool first, Buffer& buffer, const PendingCase& given) {
  constexpr size_t kSize = 100'000;
  const bool waits = given.pends == Pends::kBoth || first == (given.pends == Pends::kSource);
  std::optional<Blocked> blocked;
  if (waits) blocked.emplace();
  const onehop::After after = waits ? blocked->after(/*by_event=*/true) : onehop::After{};
  first ? buffer.fill(1) : buffer.poison();
  const bool posts_now = first != given.receive_first;
  if (!posts_now) side.sync();
  onehop::Request request = first ? side.peer().isend(buffer.data(), kSize, 0, after)
                                  : side.peer().irecv(buffer.data(), kSize, 0, after);
  if (posts_now) side.sync();
  side.sync();
  EXPECT_FALSE(request.test());
  side.sync();
  if (waits) blocked->release();
  const oh_path path = request.wait(20s).path;
  if (!first) {
    EXPECT_TRUE(buffer.holds(1, kSize));
  }
  return path;
}

TEST_P(ExplainedPending, OfMessages) {
  run([](Side& side) {
    Memory memory(side, GetParam());
    const Rows rows(side.peer());
    with_each_pair(side, GetParam(), [&](bool first, size_t mine, const Between& between) {
      for (Pends pends : {Pends::kSource, Pends::kTarget, Pends::kBoth}) {
        // The caller waits for work on host memory.
        if (is_host(between.source) && pends != Pends::kTarget) continue;
        if (is_host(between.target) && pends != Pends::kSource) continue;
        for (bool receive_first : {true, false}) {
          const PendingCase given{pends, receive_first};
          SCOPED_TRACE(text_of(given));
          const oh_path path = pass_pending(side, first, memory[mine], given);
          if (!first) {
            side.tell_number(path);
            continue;
          }
          // A receive that is ready when the message is announced gets no event. One that was
          // posted first is announced if it is ready.
          const bool announced = pends == Pends::kBoth || !receive_first;
          const bool apart =
              pends != Pends::kTarget && announced && !rows.of("pending message", between).empty();
          const std::vector<const Row*> allowed =
              rows.allowed(apart ? "pending message" : "message", between, 100'000);
          EXPECT_TRUE(is_among(path, allowed)) << "the send";
          EXPECT_TRUE(is_among(side.hear_number(), allowed)) << "the receive";
        }
      }
    });
  });
}

// ---- Receives from any source -----------------------------------------------------------------

class ExplainedAnySource : public ExplainedPaths {};

TEST_P(ExplainedAnySource, OfMessages) {
  run([](Side& side) {
    Memory memory(side, GetParam());
    const Rows rows(side.peer());
    with_each_pair(side, GetParam(), [&](bool first, size_t mine, const Between& between) {
      Buffer& buffer = memory[mine];
      for (size_t size : {size_t{1}, size_t{1000}, size_t{100'000}}) {
        for (bool receive_first : {true, false}) {
          SCOPED_TRACE(std::to_string(size) + " bytes, " +
                       (receive_first ? "receive first" : "send first"));
          const bool posts_now = first != receive_first;
          if (!posts_now) side.sync();
          first ? buffer.fill(1) : buffer.poison();
          onehop::Request request = first ? side.peer().isend(buffer.data(), size)
                                          : side.endpoint().irecv(buffer.data(), size);
          if (posts_now) side.sync();
          const oh_path path = request.wait(20s).path;
          if (!first) {
            side.tell_number(path);
            EXPECT_TRUE(buffer.holds(1, size));
            continue;
          }
          const std::vector<const Row*> allowed = rows.allowed("message", between, size);
          EXPECT_TRUE(is_among(path, allowed)) << "the send";
          EXPECT_TRUE(is_among(side.hear_number(), allowed)) << "the receive";
        }
      }
    });
  });
}

// ---- Link kinds with GPUs -----------------------------------------------------------------------

LinkKind gpu_link(const char* name) {
  LinkKind link = between_gpus(MemoryKind::kMalloc);
  link.name = name;
  return link;
}

LinkKind one_gpu(LinkKind link) {
  link.name += "_one_gpu";
  link.device[1] = 0;
  return link;
}

LinkKind threads(LinkKind link) {
  link.name += "_threads";
  link.processes = false;
  return link;
}

LinkKind with(LinkKind link, const char* name, const char* variable, const char* value) {
  link.name += name;
  link.env[variable] = value;
  return link;
}

LinkKind with_worker(const LinkKind& link) { return with(link, "_worker", "ONEHOP_WORKER", "1"); }

LinkKind host_endpoint(LinkKind link) {
  link.name += "_host_endpoint";
  link.device[1] = -1;
  return link;
}

// One path of the bytes for each kind of link, for slow tests.
std::vector<Explained> few_gpu_kinds() {
  using enum MemoryKind;
  const Kinds memory = {kPrivate, kMalloc, kAsync};
  LinkKind processes = gpu_link("gpus");
  return {over(processes, memory), over(threads(processes), memory),
          over(between_hosts(OH_PATH_UCX, processes), memory)};
}

std::vector<Explained> gpu_kinds() {
  using enum MemoryKind;
  if (kSanitized) return few_gpu_kinds();
  const Kinds memory = {kPrivate, kMalloc, kVmm, kAsync};
  LinkKind processes = gpu_link("gpus");
  LinkKind one_process = threads(processes);
  std::vector<Explained> kinds;
  const Kinds first = {kPrivate, kMalloc, kVmm, kAsync, kManaged};
  const Kinds second = {kPrivate, kShared, kPinned, kMalloc, kInside, kPool, kAsync};
  kinds.push_back(over(processes, first, second));
  kinds.push_back(over(one_process, first, second));
  for (const LinkKind& link : {processes, one_process}) {
    kinds.push_back(over(one_gpu(link), memory));
    kinds.push_back(over(with_worker(link), memory));
    kinds.push_back(over(with(link, "_without_p2p", "FAKE_CUDA", "devices=2,p2p=none"), memory));
    kinds.push_back(over(with(link, "_without_ipc", "ONEHOP_CUDA_IPC", "off"), memory));
    kinds.push_back(over(host_endpoint(link), memory, kHostKinds));
  }
  kinds.push_back(over(with_worker(one_gpu(one_process)), memory));
  kinds.push_back(over(with(processes, "_no_single_copy", "ONEHOP_CMA", "off"), memory));
  for (oh_path path : {OH_PATH_UCX, OH_PATH_SOCKET}) {
    LinkKind link = between_hosts(path, processes);
    kinds.push_back(over(host_endpoint(link), {kPrivate, kMalloc}, {kPrivate}));
    kinds.push_back(over(std::move(link), {kPrivate, kMalloc, kAsync}));
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Gpu, ExplainedPaths, ::testing::ValuesIn(gpu_kinds()), name_of_link);

// Several streams fill one buffer in an order that the other process determines: ThreadSanitizer
// does not see that order.
#if !defined(OH_THREAD_SANITIZER)
std::vector<Explained> gpu_kinds_without_credit() {
  std::vector<Explained> kinds = few_gpu_kinds();
  kinds.push_back(over(with(gpu_link("gpus"), "_no_single_copy", "ONEHOP_CMA", "off"),
                       {MemoryKind::kPrivate, MemoryKind::kMalloc}));
  for (Explained& kind : kinds) kind.link = with_little_credit(kind.link);
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Gpu, ExplainedWithoutCredit,
                         ::testing::ValuesIn(gpu_kinds_without_credit()), name_of_link);

INSTANTIATE_TEST_SUITE_P(Gpu, ExplainedWithoutSlots,
                         ::testing::Values(over(gpu_link("gpus"), {MemoryKind::kPrivate},
                                                {MemoryKind::kMalloc})),
                         name_of_link);
#else
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ExplainedWithoutSlots);
#endif

std::vector<Explained> pending_kinds() {
  using enum MemoryKind;
  if (kSanitized) return few_gpu_kinds();
  const Kinds memory = {kPrivate, kMalloc, kVmm, kAsync};
  const LinkKind processes = gpu_link("gpus");
  const LinkKind one_process = threads(processes);
  return {over(processes, memory),
          over(one_process, memory),
          over(one_gpu(processes), memory),
          over(one_gpu(one_process), memory),
          over(with_worker(processes), memory),
          over(with(processes, "_without_p2p", "FAKE_CUDA", "devices=2,p2p=none"), memory),
          over(between_hosts(OH_PATH_UCX, processes), {kPrivate, kMalloc, kAsync})};
}

INSTANTIATE_TEST_SUITE_P(Gpu, ExplainedPending, ::testing::ValuesIn(pending_kinds()), name_of_link);
INSTANTIATE_TEST_SUITE_P(Gpu, ExplainedAnySource, ::testing::ValuesIn(few_gpu_kinds()),
                         name_of_link);

}  // namespace
}  // namespace conformance::gpu_explained
