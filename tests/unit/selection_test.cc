// SPDX-License-Identifier: Apache-2.0
#include "path/selection.h"

#include <errno.h>

#include <map>
#include <optional>
#include <set>
#include <span>
#include <tuple>

#include "unit/fake_gpu.h"
#include "unit/faulty_os.h"
#include "unit/support.h"

namespace selection_test {
namespace {

using namespace oh;

constexpr MemoryKind kHost = MemoryKind::kHost;
constexpr MemoryKind kShared = MemoryKind::kShared;
constexpr MemoryKind kPinned = MemoryKind::kPinned;
constexpr MemoryKind kDevice = MemoryKind::kDevice;
constexpr MemoryKind kPrivate = MemoryKind::kDevicePrivate;

LinkFacts link(bool segment, bool same_process, bool we_reach, bool they_reach) {
  LinkFacts facts;
  facts.segment = segment;
  facts.same_process = same_process;
  facts.we_reach_them = we_reach;
  facts.they_reach_us = they_reach;
  facts.granted_inline = 400;
  facts.eager_max = 16384;
  facts.eager_credit = 262144;
  facts.why_no_segment = segment ? "" : "another host";
  facts.why_not_reached = we_reach ? "" : "EPERM";
  return facts;
}

// A link between two GPUs.
LinkFacts gpu_link(bool same_process, bool same_gpu = false) {
  LinkFacts facts = link(true, same_process, true, true);
  facts.our_gpu = facts.their_gpu = true;
  facts.same_gpu = same_gpu;
  return facts;
}

struct Row {
  LinkFacts facts;
  MemoryKind source;
  MemoryKind target;
  uint64_t size;
  oh_path path;
  Method method;
  const char* why;
};

void expect_rows(std::span<const Row> table, decltype(choose_message)* choose) {
  for (const Row& row : table) {
    const Choice choice = choose(row.facts, row.source, row.target, row.size);
    EXPECT_EQ(choice.path, row.path) << row.size << ": " << choice.why;
    EXPECT_EQ(choice.method, row.method) << row.size << ": " << choice.why;
    EXPECT_NE(choice.why.find(row.why), std::string::npos) << choice.why;
  }
}

TEST(SelectionTest, MessagesTakeTheShortestPath) {
  LinkFacts local = link(true, true, true, true);
  LinkFacts shm = link(true, false, true, true);
  LinkFacts theirs_only = link(true, false, false, true);
  LinkFacts no_reach = link(true, false, false, false);
  LinkFacts socket = link(false, false, false, false);
  LinkFacts ucx = socket;
  ucx.ucx = true;
  LinkFacts no_credit = shm;
  no_credit.eager_credit = 0;
  LinkFacts little_credit = shm;
  little_credit.eager_credit = 300;  // 4 times 64 bytes, and a rest that never suffices
  LinkFacts no_inline = shm;
  no_inline.granted_inline = 0;
  const Row table[] = {
      {local, kHost, kHost, 0, OH_PATH_INLINE, Method::kInline, "control message"},
      {no_credit, kHost, kHost, 0, OH_PATH_INLINE, Method::kInline, "control message"},
      {little_credit, kHost, kHost, 256, OH_PATH_INLINE, Method::kInline, "without credit"},
      {little_credit, kHost, kHost, 257, OH_PATH_SHM, Method::kDirect, "process_vm"},
      {local, kHost, kHost, 400, OH_PATH_INLINE, Method::kInline, "control message"},
      {local, kHost, kHost, 401, OH_PATH_LOCAL, Method::kEager, "two copies through the ring"},
      {local, kHost, kHost, 16384, OH_PATH_LOCAL, Method::kEager, "two copies"},
      {local, kHost, kHost, 16385, OH_PATH_LOCAL, Method::kDirect, "plain addresses"},
      {shm, kHost, kHost, 400, OH_PATH_INLINE, Method::kInline, "control message"},
      {shm, kHost, kHost, 16384, OH_PATH_SHM, Method::kEager, "two copies"},
      {shm, kHost, kHost, 16385, OH_PATH_SHM, Method::kDirect, "process_vm_readv"},
      {shm, kShared, kHost, 16385, OH_PATH_SHM, Method::kDirect, "mapped block"},
      {shm, kHost, kShared, UINT64_MAX, OH_PATH_SHM, Method::kDirect, "mapped block"},
      {theirs_only, kHost, kHost, 1 << 20, OH_PATH_SHM, Method::kDirect, "process_vm"},
      {no_reach, kHost, kHost, 1 << 20, OH_PATH_SHM, Method::kStream, "through the ring: EPERM"},
      {no_reach, kHost, kShared, 1 << 20, OH_PATH_SHM, Method::kDirect, "mapped block"},
      {no_reach, kShared, kShared, 16384, OH_PATH_SHM, Method::kEager, "two copies"},
      {no_credit, kHost, kHost, 8, OH_PATH_SHM, Method::kDirect, "process_vm"},
      {no_inline, kHost, kHost, 0, OH_PATH_INLINE, Method::kInline, "control message"},
      {no_inline, kHost, kHost, 1, OH_PATH_SHM, Method::kEager, "two copies"},
      {socket, kHost, kHost, 400, OH_PATH_INLINE, Method::kInline, "control message"},
      {socket, kHost, kHost, 401, OH_PATH_SOCKET, Method::kEager, "control socket"},
      {socket, kShared, kShared, 1 << 20, OH_PATH_SOCKET, Method::kStream,
       "no shared memory: another host"},
      {ucx, kHost, kHost, 400, OH_PATH_INLINE, Method::kInline, "control message"},
      {ucx, kHost, kHost, 401, OH_PATH_UCX, Method::kEager, "over UCX"},
      {ucx, kShared, kHost, 1 << 20, OH_PATH_UCX, Method::kStream, "over UCX"},
  };
  expect_rows(table, choose_message);
}

TEST(SelectionTest, MessagesOfDeviceMemoryTakeTheShortestPath) {
  constexpr uint64_t kAny = 1 << 20;
  LinkFacts ipc = gpu_link(false);
  LinkFacts local = gpu_link(true);
  LinkFacts local_same = gpu_link(true, true);
  LinkFacts apart = ipc;
  apart.why_no_peer_access = "no peer access";
  LinkFacts no_device = ipc;
  no_device.why_no_device = "not pinned";
  LinkFacts theirs = ipc;
  theirs.our_gpu = false;
  LinkFacts ours = ipc;
  ours.their_gpu = false;
  LinkFacts socket = ipc;
  socket.segment = false;
  socket.why_no_segment = "another host";
  LinkFacts no_credit = ipc;
  no_credit.eager_credit = 0;
  const Row table[] = {
      {ipc, kDevice, kDevice, 0, OH_PATH_INLINE, Method::kInline, "control message"},
      {ipc, kDevice, kDevice, 1, OH_PATH_CUDA_IPC, Method::kDirect, "source's engine into"},
      {ipc, kPrivate, kDevice, kAny, OH_PATH_CUDA_IPC, Method::kDirect, "source's engine into"},
      {ipc, kDevice, kPrivate, kAny, OH_PATH_CUDA_IPC, Method::kDirect, "target's engine out"},
      {ipc, kPrivate, kPrivate, kAny, OH_PATH_STAGED, Method::kStream, "neither"},
      {apart, kDevice, kDevice, kAny, OH_PATH_RELAY, Method::kStream, "no peer access"},
      {apart, kPrivate, kPrivate, kAny, OH_PATH_RELAY, Method::kStream, "no peer access"},
      {local, kDevice, kDevice, kAny, OH_PATH_LOCAL, Method::kDirect, "cudaMalloc"},
      {local, kDevice, kPrivate, kAny, OH_PATH_LOCAL, Method::kDirect, "target's engine"},
      {local, kPrivate, kPrivate, kAny, OH_PATH_STAGED, Method::kStream, "slab"},
      {local_same, kPrivate, kPrivate, kAny, OH_PATH_LOCAL, Method::kDirect, "plain address"},
      {ipc, kHost, kDevice, 400, OH_PATH_INLINE, Method::kInline, "receiver's engine"},
      {ipc, kHost, kPrivate, 16384, OH_PATH_SHM, Method::kEager, "through the ring"},
      {ipc, kHost, kDevice, 16385, OH_PATH_RELAY, Method::kStream, "the CPU fills"},
      {ipc, kShared, kDevice, 16384, OH_PATH_SHM, Method::kEager, "through the ring"},
      {ipc, kShared, kDevice, 16385, OH_PATH_CUDA_IPC, Method::kDirect, "side with the device"},
      {ipc, kDevice, kShared, 8, OH_PATH_CUDA_IPC, Method::kDirect, "side with the device"},
      {apart, kPrivate, kShared, 8, OH_PATH_CUDA_IPC, Method::kDirect, "side with the device"},
      {theirs, kShared, kPrivate, kAny, OH_PATH_CUDA_IPC, Method::kDirect, "side with the device"},
      {local, kPrivate, kShared, kAny, OH_PATH_LOCAL, Method::kDirect, "side with the device"},
      {ipc, kPinned, kDevice, kAny, OH_PATH_CUDA_IPC, Method::kDirect, "with the pinned memory"},
      {ipc, kDevice, kPinned, 8, OH_PATH_CUDA_IPC, Method::kDirect, "with the pinned memory"},
      {ipc, kPrivate, kPinned, 8, OH_PATH_RELAY, Method::kStream, "an engine fills"},
      {ipc, kPinned, kPrivate, kAny, OH_PATH_RELAY, Method::kStream, "the CPU fills"},
      {apart, kDevice, kPinned, 8, OH_PATH_RELAY, Method::kStream, "an engine fills"},
      {apart, kPinned, kDevice, kAny, OH_PATH_RELAY, Method::kStream, "the CPU fills"},
      {theirs, kPinned, kDevice, kAny, OH_PATH_RELAY, Method::kStream, "the CPU fills"},
      {ours, kDevice, kPinned, 8, OH_PATH_RELAY, Method::kStream, "the CPU drains"},
      {local, kDevice, kPinned, 8, OH_PATH_LOCAL, Method::kDirect, "with the pinned memory"},
      {local_same, kPinned, kPrivate, kAny, OH_PATH_LOCAL, Method::kDirect,
       "with the pinned memory"},
      {no_credit, kHost, kDevice, 8, OH_PATH_RELAY, Method::kStream, "the CPU fills"},
      {ipc, kDevice, kHost, 8, OH_PATH_RELAY, Method::kStream, "the CPU drains"},
      {theirs, kHost, kDevice, kAny, OH_PATH_RELAY, Method::kStream, "an engine drains"},
      {no_device, kDevice, kHost, 8, OH_PATH_NONE, Method::kNone, "not pinned"},
      {no_device, kHost, kDevice, kAny, OH_PATH_RELAY, Method::kStream, "an engine drains"},
      {socket, kDevice, kDevice, 8, OH_PATH_SOCKET, Method::kStream, "pinned host memory"},
      {socket, kHost, kDevice, 8, OH_PATH_INLINE, Method::kInline, "receiver's engine"},
      {socket, kHost, kDevice, 401, OH_PATH_SOCKET, Method::kEager, "another host"},
      {socket, kHost, kDevice, kAny, OH_PATH_SOCKET, Method::kStream, "another host"},
  };
  expect_rows(table, choose_message);
}

TEST(SelectionTest, OneSidedOperationsTakeTheShortestPath) {
  const Row table[] = {
      {link(true, false, true, true), kHost, kHost, 0, OH_PATH_SHM, Method::kNone, "no bytes"},
      {link(true, true, true, true), kHost, kHost, 1, OH_PATH_LOCAL, Method::kDirect, "plain"},
      {link(true, true, true, true), kHost, kShared, 1, OH_PATH_LOCAL, Method::kDirect, "plain"},
      {link(true, false, true, true), kHost, kHost, 1, OH_PATH_SHM, Method::kDirect, "process_vm"},
      {link(true, false, true, true), kHost, kShared, 1, OH_PATH_SHM, Method::kDirect, "mapped"},
      {link(true, false, false, true), kHost, kShared, 1, OH_PATH_SHM, Method::kDirect, "mapped"},
      {link(true, false, false, true), kHost, kHost, 1, OH_PATH_SHM, Method::kStream, "EPERM"},
      {link(false, false, false, false), kHost, kShared, 1, OH_PATH_SOCKET, Method::kStream,
       "another host"},
  };
  expect_rows(table, choose_one_sided);
}

TEST(SelectionTest, OneSidedOperationsOnDeviceMemoryTakeTheShortestPath) {
  LinkFacts ipc = gpu_link(false);
  LinkFacts local = gpu_link(true);
  LinkFacts apart = ipc;
  apart.why_no_peer_access = "no peer access";
  LinkFacts theirs = ipc;
  theirs.our_gpu = false;
  LinkFacts no_device = ipc;
  no_device.why_no_device = "not pinned";
  const Row table[] = {
      {ipc, kDevice, kDevice, 0, OH_PATH_SHM, Method::kNone, "no bytes"},
      {ipc, kDevice, kDevice, 1, OH_PATH_CUDA_IPC, Method::kDirect, "our engine"},
      {ipc, kPrivate, kDevice, 1, OH_PATH_CUDA_IPC, Method::kDirect, "our engine"},
      {ipc, kHost, kDevice, 1, OH_PATH_CUDA_IPC, Method::kDirect, "our engine"},
      {ipc, kDevice, kPrivate, 1, OH_PATH_CUDA_IPC, Method::kDirect, "target's progress"},
      {ipc, kPrivate, kPrivate, 1, OH_PATH_STAGED, Method::kStream, "target's progress"},
      {ipc, kHost, kPrivate, 1, OH_PATH_RELAY, Method::kStream, "target's progress"},
      {ipc, kDevice, kHost, 1, OH_PATH_RELAY, Method::kStream, "target's progress"},
      {ipc, kDevice, kShared, 1, OH_PATH_CUDA_IPC, Method::kDirect, "block of host memory"},
      {apart, kPrivate, kShared, 1, OH_PATH_CUDA_IPC, Method::kDirect, "block of host memory"},
      {apart, kDevice, kDevice, 1, OH_PATH_RELAY, Method::kStream, "no peer access"},
      {theirs, kHost, kDevice, 1, OH_PATH_RELAY, Method::kStream, "target's progress"},
      {no_device, kHost, kDevice, 1, OH_PATH_RELAY, Method::kStream, "target's progress"},
      {no_device, kDevice, kDevice, 1, OH_PATH_NONE, Method::kNone, "not pinned"},
      {local, kDevice, kHost, 1, OH_PATH_LOCAL, Method::kDirect, "our engine"},
      {local, kHost, kDevice, 1, OH_PATH_LOCAL, Method::kDirect, "cudaMalloc"},
      {local, kPrivate, kPrivate, 1, OH_PATH_STAGED, Method::kStream, "target's progress"},
      {link(false, false, false, false), kDevice, kPrivate, 1, OH_PATH_SOCKET, Method::kStream,
       "pinned host memory"},
  };
  expect_rows(table, choose_one_sided);
}

// Sources that the target's engine would read, without knowing when it may, have rows of their own.
// Others take the path of any message.
TEST(SelectionTest, PendingMessagesHaveRowsWhereTheyTakeAnotherPath) {
  LinkFacts apart = gpu_link(false);
  apart.why_no_peer_access = "no peer access";
  LinkFacts socket = gpu_link(false);
  socket.segment = false;
  const std::pair<LinkFacts, bool> table[] = {
      {gpu_link(false), true},       {gpu_link(true), true}, {gpu_link(false, true), true},
      {gpu_link(true, true), false}, {apart, false},         {socket, false}};
  for (const auto& [facts, differs] : table) {
    std::vector<PathRow> found;
    for (const PathRow& row : explain(facts)) {
      if (row.operation != "pending message") continue;
      // Nor does the engine of pinned memory know when.
      if (row.target == kPinned) {
        EXPECT_EQ(row.choice.path, row.last == 0 ? OH_PATH_INLINE : OH_PATH_RELAY);
        continue;
      }
      found.push_back(row);
    }
    ASSERT_EQ(found.size(), differs ? 2u : 0u);
    if (!differs) continue;
    EXPECT_EQ(found[0].choice.path, OH_PATH_INLINE);
    EXPECT_EQ(found[1].source, kDevice);
    EXPECT_EQ(found[1].target, kPrivate);
    EXPECT_EQ(found[1].first, 1u);
    EXPECT_EQ(found[1].choice.path, OH_PATH_STAGED);
    EXPECT_NE(found[1].choice.why.find("does not wait"), std::string::npos);
  }
}

// The worker copies what the local engine would, up to its largest size and if kernels have access.
TEST(SelectionTest, TheWorkerTakesSmallCopiesOfOurEngine) {
  for (bool same_process : {false, true}) {
    for (bool same_gpu : {false, true}) {
      LinkFacts facts = gpu_link(same_process, same_gpu);
      facts.worker_max = 65536;
      for (MemoryKind ours : {kDevice, kPrivate}) {
        for (MemoryKind theirs : {kDevice, kPrivate}) {
          bool pushed = theirs == kDevice && (!same_process || same_gpu);
          bool put = theirs == kDevice && !same_process;
          EXPECT_EQ(choose_message(facts, ours, theirs, 65536).path == OH_PATH_WORKER, pushed);
          EXPECT_EQ(choose_one_sided(facts, ours, theirs, 65536).path == OH_PATH_WORKER, put);
          EXPECT_NE(choose_message(facts, ours, theirs, 65537).path, OH_PATH_WORKER);
          EXPECT_NE(choose_one_sided(facts, ours, theirs, 65537).path, OH_PATH_WORKER);
        }
      }
      EXPECT_NE(choose_message(facts, kHost, kDevice, 1).path, OH_PATH_WORKER);
    }
  }
}

cuda::GpuLink joined_by(oh_link kind, unsigned nvlinks = 0) {
  cuda::GpuLink link;
  link.kind = kind;
  link.nvlinks = nvlinks;
  return link;
}

// The connection of the GPUs is part of the reason of every path between them, and of no other; it
// does not affect the choice.
TEST(SelectionTest, TheLinkIsSaidAndChangesNoChoice) {
  for (bool same_process : {false, true}) {
    const LinkFacts plain = gpu_link(same_process);
    for (int kind = OH_LINK_NVLINK; kind <= OH_LINK_PCIE_SYSTEM; ++kind) {
      LinkFacts facts = plain;
      facts.gpu_link = joined_by(static_cast<oh_link>(kind), kind == OH_LINK_NVLINK ? 18 : 0);
      const std::string text = ", over " + facts.gpu_link.text();
      const std::vector<PathRow> rows = explain(facts);
      const std::vector<PathRow> before = explain(plain);
      ASSERT_EQ(rows.size(), before.size());
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(rows[i].choice.path, before[i].choice.path);
        EXPECT_EQ(rows[i].choice.method, before[i].choice.method);
        bool between = rows[i].source >= kDevice && rows[i].target >= kDevice && rows[i].last > 0;
        EXPECT_EQ(rows[i].choice.why.find(text) != std::string::npos, between)
            << rows[i].choice.why;
      }
    }
  }
  LinkFacts one = gpu_link(false, true);
  one.gpu_link = joined_by(OH_LINK_SAME);
  EXPECT_EQ(choose_message(one, kDevice, kDevice, 1).why,
            choose_message(gpu_link(false, true), kDevice, kDevice, 1).why);
}

// Only if the hardware allows a better path.
TEST(SelectionTest, AWayThatIsLongerThanTheHardwareAllowsIsSaid) {
  LinkFacts facts = gpu_link(false);
  facts.gpu_link = joined_by(OH_LINK_NVLINK, 18);
  EXPECT_EQ(why_slower(facts), "");
  facts.why_no_peer_access = "there is no peer access";
  EXPECT_NE(why_slower(facts).find("there is no peer access, so that copies go through host"),
            std::string::npos);
  EXPECT_NE(why_slower(facts).find("NVLink, 18 links"), std::string::npos);
  for (oh_link kind : {OH_LINK_UNKNOWN, OH_LINK_SAME, OH_LINK_PCIE_SWITCH, OH_LINK_PCIE_SYSTEM}) {
    facts.gpu_link = joined_by(kind);
    EXPECT_EQ(why_slower(facts), "") << kind;
  }
  // Within the process the driver stages the copy through the host.
  facts.same_process = true;
  EXPECT_NE(
      choose_message(facts, kDevice, kDevice, 1).why.find("by the driver through host memory"),
      std::string::npos);
}

// There are rows for the memory kinds that the two sides have, and for no other.
TEST(SelectionTest, DeviceMemoryIsExplainedWhereThereIsSome) {
  for (int bits = 0; bits < 4; ++bits) {
    LinkFacts facts = gpu_link(false);
    facts.our_gpu = bits & 1;
    facts.their_gpu = bits & 2;
    std::set<MemoryKind> sources;
    std::set<MemoryKind> targets;
    for (const PathRow& row : explain(facts)) {
      if (row.operation == "message") sources.insert(row.source);
      if (row.operation == "message") targets.insert(row.target);
    }
    EXPECT_EQ(sources.size(), 2 + (facts.our_gpu ? 2 : 0) + (facts.their_gpu ? 1 : 0));
    EXPECT_EQ(targets.size(), 2 + (facts.their_gpu ? 2 : 0) + (facts.our_gpu ? 1 : 0));
  }
}

// One row, if both sides are on a GPU and the link was checked.
TEST(SelectionTest, StreamsAreExplained) {
  auto row_of = [](const LinkFacts& facts) {
    std::vector<PathRow> found;
    for (const PathRow& row : explain(facts)) {
      if (row.operation == "stream") found.push_back(row);
    }
    return found;
  };
  LinkFacts facts = gpu_link(false);
  EXPECT_TRUE(row_of(facts).empty());
  facts.stream_path = OH_PATH_NVLINK;
  facts.gpu_link = joined_by(OH_LINK_NVLINK, 18);
  ASSERT_EQ(row_of(facts).size(), 1u);
  EXPECT_EQ(row_of(facts)[0].choice.path, OH_PATH_NVLINK);
  EXPECT_EQ(row_of(facts)[0].choice.why,
            "by kernels that write to each other's memory, over NVLink, 18 links");
  facts.stream_path = OH_PATH_PROXY;
  facts.why_stream = "there is no peer access";
  EXPECT_EQ(row_of(facts)[0].choice.why, "through the host: there is no peer access");
  facts.stream_path = OH_PATH_NONE;
  EXPECT_EQ(row_of(facts)[0].choice.method, Method::kNone);
  facts.their_gpu = false;
  EXPECT_TRUE(row_of(facts).empty());
}

// One row for each kind of memory that the other side has.
TEST(SelectionTest, AtomicOperationsAreExplained) {
  auto choice_of = [](const LinkFacts& facts, MemoryKind target) {
    std::vector<Choice> found;
    for (const PathRow& row : explain(facts)) {
      if (row.operation != "atomic" || row.target != target) continue;
      EXPECT_EQ(row.source, kHost);
      EXPECT_EQ(row.first, 8u);
      EXPECT_EQ(row.last, 8u);
      found.push_back(row.choice);
    }
    EXPECT_LE(found.size(), 1u);
    return found.empty() ? std::optional<Choice>() : found[0];
  };
  LinkFacts shm = gpu_link(false);
  LinkFacts local = link(true, true, true, true);
  LinkFacts socket = link(false, false, false, false);
  LinkFacts kernels = gpu_link(false);
  kernels.stream_path = OH_PATH_NVLINK;
  kernels.gpu_link = joined_by(OH_LINK_NVLINK, 18);
  LinkFacts threads = gpu_link(true);
  LinkFacts one_gpu = gpu_link(true, true);
  threads.stream_path = one_gpu.stream_path = OH_PATH_NVLINK;
  LinkFacts no_kernels = gpu_link(false);
  no_kernels.stream_path = OH_PATH_PROXY;
  no_kernels.why_stream = "there is no peer access";
  LinkFacts to_gpu = gpu_link(false);
  to_gpu.our_gpu = false;
  const Row table[] = {
      {shm, kHost, kHost, 8, OH_PATH_INLINE, Method::kInline, "not mapped"},
      {shm, kHost, kShared, 8, OH_PATH_SHM, Method::kDirect, "CPU instruction"},
      {local, kHost, kHost, 8, OH_PATH_LOCAL, Method::kDirect, "CPU instruction"},
      {local, kHost, kShared, 8, OH_PATH_LOCAL, Method::kDirect, "CPU instruction"},
      {socket, kHost, kShared, 8, OH_PATH_INLINE, Method::kInline, "not mapped"},
      {kernels, kHost, kDevice, 8, OH_PATH_NVLINK, Method::kDirect,
       "kernel of our GPU, over NVLink"},
      {kernels, kHost, kPrivate, 8, OH_PATH_NONE, Method::kNone, "cannot be mapped"},
      {threads, kHost, kPrivate, 8, OH_PATH_NONE, Method::kNone, "cannot be mapped"},
      {one_gpu, kHost, kPrivate, 8, OH_PATH_NVLINK, Method::kDirect, "kernel of our GPU"},
      {no_kernels, kHost, kDevice, 8, OH_PATH_NONE, Method::kNone, "there is no peer access"},
      {to_gpu, kHost, kDevice, 8, OH_PATH_NONE, Method::kNone, "endpoint is for host memory"},
  };
  for (const Row& row : table) {
    const std::optional<Choice> choice = choice_of(row.facts, row.target);
    ASSERT_TRUE(choice);
    EXPECT_EQ(choice->path, row.path) << choice->why;
    EXPECT_EQ(choice->method, row.method) << choice->why;
    EXPECT_NE(choice->why.find(row.why), std::string::npos) << choice->why;
  }
  EXPECT_FALSE(choice_of(local, kDevice));
}

// Whatever the facts are: the rows of a pair of memories follow each other without gap or overlap,
// from nothing to everything, and each says what choose_message() says at both of its ends.
TEST(SelectionTest, TheExplanationCoversEverySizeOnce) {
  for (int bits = 0; bits < 128; ++bits) {
    for (uint64_t granted : {uint64_t{0}, uint64_t{400}, uint64_t{65536}}) {
      for (uint64_t eager : {uint64_t{0}, uint64_t{300}, uint64_t{16384}}) {
        for (uint64_t credit : {0, 262144}) {
          LinkFacts facts = link(bits & 1, bits & 2, bits & 4, bits & 8);
          facts.granted_inline = granted;
          facts.eager_max = eager;
          facts.eager_credit = credit;
          facts.our_gpu = bits & 16;
          facts.their_gpu = bits & 32;
          facts.worker_max = facts.our_gpu && (bits & 64) ? 65536 : 0;
          using Kinds = std::tuple<std::string, MemoryKind, MemoryKind>;
          std::map<Kinds, uint64_t> next;
          std::map<std::string, size_t> complete;
          for (const PathRow& row : explain(facts)) {
            EXPECT_FALSE(row.choice.why.empty());
            if (row.operation == "atomic") continue;  // of one size
            Kinds kinds(row.operation, row.source, row.target);
            EXPECT_EQ(row.first, next[kinds]) << granted << " " << eager;
            EXPECT_LE(row.first, row.last);
            for (uint64_t size : {row.first, row.last}) {
              auto* choose = row.operation == "message"           ? choose_message
                             : row.operation == "pending message" ? choose_pending
                                                                  : choose_one_sided;
              Choice choice = choose(facts, row.source, row.target, size);
              EXPECT_EQ(row.choice.why, choice.why)
                  << size << " of " << granted << " " << eager << " " << credit;
            }
            next[kinds] = row.last + 1;
            if (row.last == UINT64_MAX) ++complete[row.operation];
          }
          size_t ours = facts.our_gpu ? 2 : 0;
          size_t theirs = facts.their_gpu ? 2 : 0;
          const size_t all = 4 + 3 * (ours + theirs) + ours * theirs;
          EXPECT_EQ(complete["message"], all);
          EXPECT_EQ(complete["put/get"], all);
        }
      }
    }
  }
}

// Every named path is viable here, or has a reason.
TEST(SelectionTest, EveryTransportIsViableOrSaysWhyNot) {
  std::map<std::string, TransportFact> by_name;
  for (const TransportFact& fact : transports("off", "off")) {
    EXPECT_FALSE(fact.why.empty()) << fact.name;
    EXPECT_TRUE(by_name.emplace(fact.name, fact).second) << fact.name;
  }
  for (int path = OH_PATH_LOCAL; path < OH_PATH_COUNT; ++path) {
    if (path == OH_PATH_INLINE) continue;  // included in each of them
    EXPECT_EQ(by_name.count(oh_path_name(static_cast<oh_path>(path))), 1u) << path;
  }
  EXPECT_TRUE(by_name.at("local").viable);
  EXPECT_TRUE(by_name.at("shm").viable);
  EXPECT_TRUE(by_name.at("socket").viable);
  EXPECT_FALSE(by_name.at("ucx").viable);
}

TEST(SelectionTest, EnginesAreViableWithADriver) {
  const std::set<std::string> by_engine = {"cuda_ipc", "staged", "relay", "worker"};
  for (const std::string& library : {std::string("off"), unit::FakeGpu::get().driver->library}) {
    bool there = library != "off";
    size_t found = 0;
    for (const TransportFact& fact : transports(library, "off")) {
      if (by_engine.count(fact.name) == 0) continue;
      ++found;
      EXPECT_EQ(fact.viable, there) << fact.name << ": " << fact.why;
      EXPECT_EQ(fact.why.find("switched off") != std::string::npos, !there) << fact.why;
    }
    EXPECT_EQ(found, by_engine.size());
  }
}

TEST(SelectionTest, ATransportThatFailsSaysSo) {
  unit::FaultyOs faulty;
  auto fact = [](const std::string& name) {
    for (const TransportFact& each : transports("off", "off")) {
      if (each.name == name) return each;
    }
    return TransportFact{"", true, ""};
  };
  faulty.arm(unit::Call::memfd_create, 0, ENOSYS);
  TransportFact shm = fact("shm");
  EXPECT_FALSE(shm.viable);
  EXPECT_NE(shm.why.find("ENOSYS"), std::string::npos) << shm.why;
  faulty.arm(unit::Call::process_vm_readv, 0, EPERM);
  TransportFact single = fact("shm single copy");
  EXPECT_FALSE(single.viable);
  EXPECT_NE(single.why.find("EPERM"), std::string::npos) << single.why;
}

TEST(SelectionTest, KindsAndMethodsHaveNames) {
  EXPECT_STREQ(memory_kind_name(kHost), "host");
  EXPECT_STREQ(memory_kind_name(kShared), "shared");
  EXPECT_STREQ(memory_kind_name(kDevice), "device");
  EXPECT_STREQ(memory_kind_name(kPrivate), "device-private");
  std::set<std::string> names;
  for (Method method :
       {Method::kInline, Method::kEager, Method::kDirect, Method::kStream, Method::kNone}) {
    EXPECT_TRUE(names.insert(method_name(method)).second);
  }
  EXPECT_STREQ(method_name(static_cast<Method>(99)), "unknown");
}

TEST(SelectionTest, TheLogNamesTheChoiceAndWhyNothingFaster) {
  EXPECT_EQ(describe_choice(link(true, true, true, true)), "host memory by local");
  EXPECT_EQ(describe_choice(link(true, false, true, true)),
            "host memory by shm; not local: the peer is another process");
  EXPECT_EQ(describe_choice(link(true, false, false, false)),
            "host memory by shm; not local: the peer is another process; not in a single copy: "
            "EPERM");
  LinkFacts far = link(false, false, false, false);
  far.why_no_ucx = "no libucp";
  EXPECT_EQ(describe_choice(far),
            "host memory by socket; not local: the peer is another process; not shm: another "
            "host; not ucx: no libucp");
  far.ucx = true;
  EXPECT_EQ(describe_choice(far),
            "host memory by ucx; not local: the peer is another process; not shm: another host");
  LinkFacts devices = gpu_link(false);
  devices.why_no_peer_access = "no peer access";
  EXPECT_THAT(
      describe_choice(devices),
      ::testing::EndsWith("; device memory by relay: through host memory, an engine on each "
                          "side: no peer access"));
}

}  // namespace
}  // namespace selection_test
