// SPDX-License-Identifier: Apache-2.0
#include "platform/os/numa.h"

#include <sched.h>
#include <unistd.h>

#include "control/node.h"
#include "transport/shm/segment.h"
#include "unit/fake_numa.h"
#include "unit/support.h"

namespace numa_test {
namespace {

using namespace oh;
using ::testing::ElementsAre;
using unit::cpus;
using unit::FakeNuma;
using unit::is_ok;

TEST(CpuSetTest, ListsAreRead) {
  for (const char* text : {"", "0", "7", "0-3", "0-3,8,10-11", "63-64", "8190-8191"}) {
    Result<CpuSet> set = CpuSet::parse(text);
    ASSERT_TRUE(is_ok(set)) << text;
    EXPECT_EQ(set->text(), text);
    EXPECT_EQ(set->empty(), *text == '\0');
  }
  EXPECT_TRUE(cpus("0-3,8").has(8));
  EXPECT_FALSE(cpus("0-3,8").has(4));
  EXPECT_EQ((cpus("0-3,8") & cpus("2-9")).text(), "2-3,8");
  EXPECT_EQ(cpus("3,1,2,2").text(), "1-3");
}

TEST(CpuSetTest, WhatIsNoListIsRefused) {
  for (const char* text : {"x", "-1", "1-", "3-1", "1,", ",1", "1 2", "0-3,", "8192", "0-8192",
                           "99999999999", "1-2-3", "1\n"}) {
    EXPECT_TRUE(unit::fails_with(CpuSet::parse(text), OH_ERR_INVALID, "list of CPUs")) << text;
  }
}

TEST(NumaTest, NodesAreWhatTheHostTells) {
  FakeNuma numa;
  EXPECT_TRUE(numa_nodes().empty());
  EXPECT_TRUE(cpus_of_node(0).empty());
  EXPECT_EQ(numa_node_of_pci("0000:17:00.0"), -1);
  numa.files["/sys/devices/system/node/online"] = "0,2-3\n";
  numa.add_node(2, "4-7");
  numa.add_node(3, "");  // memory without CPUs
  numa.files["/sys/bus/pci/devices/0000:17:00.0/numa_node"] = "2\n";
  numa.files["/sys/bus/pci/devices/0000:18:00.0/numa_node"] = "-1\n";
  numa.files["/sys/bus/pci/devices/0000:19:00.0/numa_node"] = "1x\n";
  EXPECT_THAT(numa_nodes(), ElementsAre(0, 2, 3));
  EXPECT_EQ(cpus_of_node(2).text(), "4-7");
  EXPECT_TRUE(cpus_of_node(3).empty());
  EXPECT_EQ(numa_node_of_pci("0000:17:00.0"), 2);
  EXPECT_EQ(numa_node_of_pci("0000:18:00.0"), -1);
  EXPECT_EQ(numa_node_of_pci("0000:19:00.0"), -1);
}

TEST(ThreadPlaceTest, AThreadMovesWithinItsOwnCpus) {
  FakeNuma numa;
  numa.allowed = "2-5";
  numa.add_node(0, "0-3");
  numa.add_node(1, "4-7");
  ThreadPlace place;
  place.move_to(0);
  place.move_to(0);
  place.move_to(1);
  place.move_to(-1);
  EXPECT_THAT(numa.moves(), ElementsAre("2-3", "4-5", "2-5"));
}

TEST(ThreadPlaceTest, ANodeWithoutAllowedCpusChangesNothing) {
  FakeNuma numa;
  numa.allowed = "0-3";
  numa.add_node(0, "0-1");
  numa.add_node(1, "4-7");
  ThreadPlace place;
  place.move_to(1);
  place.move_to(7);  // no such node
  EXPECT_TRUE(numa.moves().empty());
  // Nor does it stay on the previous node.
  place.move_to(0);
  place.move_to(1);
  EXPECT_THAT(numa.moves(), ElementsAre("0-1", "0-3"));
}

TEST(ThreadPlaceTest, WhatTheProgramDoesMeanwhileStays) {
  FakeNuma numa;
  numa.add_node(0, "0-3");
  ThreadPlace place;
  place.move_to(0);
  numa.set("1,6");  // as taskset would
  place.move_to(-1);
  EXPECT_EQ(CpuSet::of_thread().text(), "1,6");
  place.move_to(0);
  EXPECT_THAT(numa.moves(), ElementsAre("0-3", "1"));
  place.move_to(-1);
  EXPECT_EQ(CpuSet::of_thread().text(), "1,6");
}

TEST(ThreadPlaceTest, CallsThatAreForbiddenAreDoneWithout) {
  FakeNuma numa;
  numa.add_node(0, "0-3");
  numa.affinity_error = EPERM;
  numa.mbind_error = EPERM;
  ThreadPlace place;
  place.move_to(0);
  place.move_to(-1);
  EXPECT_TRUE(numa.moves().empty());
  EXPECT_TRUE(is_ok(Segment::create(/*shared=*/true, 0)));
  EXPECT_TRUE(is_ok(Segment::create(/*shared=*/false, 0)));
}

TEST(ThreadPlaceTest, TheKernelAgrees) {
  std::string first;
  std::string after;
  std::thread([&] {
    ThreadPlace place;
    place.move_to(cpus_of_node(0).empty() ? -1 : 0);
    first = CpuSet::of_thread().text();
    place.move_to(-1);
    after = CpuSet::of_thread().text();
  }).join();
  EXPECT_EQ(after, CpuSet::of_thread().text());
  EXPECT_FALSE(first.empty());
}

TEST(PlacedMemoryTest, SegmentsAndTheirPipesAreNearTheNode) {
  FakeNuma numa;
  ASSERT_TRUE(is_ok(Segment::create(/*shared=*/true, -1)));
  EXPECT_TRUE(numa.placed().empty());
  ASSERT_TRUE(is_ok(Segment::create(/*shared=*/true, 1)));
  ASSERT_EQ(numa.placed().size(), 1u);
  EXPECT_EQ(numa.placed()[0].size, kSegmentSize + kPipesSize);
  EXPECT_EQ(numa.placed()[0].node, 1);
  ASSERT_TRUE(is_ok(Segment::create(/*shared=*/false, 2)));
  ASSERT_EQ(numa.placed().size(), 3u);
  EXPECT_EQ(numa.placed()[1].size, kSegmentSize);
  EXPECT_EQ(numa.placed()[2].size, kPipesSize);
  EXPECT_EQ(numa.placed()[2].node, 2);
}

// On hosts with NUMA support that allows the call.
TEST(PlacedMemoryTest, TheKernelTakesIt) {
  Result<Mapping> memory = Mapping::anonymous(1 << 20, /*populate=*/false);
  ASSERT_TRUE(is_ok(memory));
  int result = Os().mbind_preferred(memory->data(), memory->size(), 0);
  EXPECT_TRUE(result == 0 || result == -EPERM || result == -ENOSYS) << result;
  EXPECT_EQ(Os().mbind_preferred(memory->data(), memory->size(), -1), -EINVAL);
  EXPECT_EQ(Os().mbind_preferred(memory->data(), memory->size(), 1024), -EINVAL);
  memory->data()[0] = 1;
}

// The watcher belongs to the process: it runs near the GPUs of all endpoints, if they share a node.
TEST(NodeTest, TheWatcherIsWhereAllGpusAre) {
  static FakeNuma& numa = *new FakeNuma;  // threads may still use it for a while
  numa.add_node(0, "0-3");
  numa.add_node(1, "4-7");
  {
    Result<std::shared_ptr<Node>> node =
        Node::get(unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}}));
    ASSERT_TRUE(is_ok(node));
    auto came_to = [](size_t moves, const std::string& where) {
      return unit::eventually([&] { return numa.moves().size() == moves; }) &&
             numa.moves().back() == where;
    };
    (*node)->add_numa(1);
    EXPECT_TRUE(came_to(1, "4-7"));
    (*node)->add_numa(1);
    (*node)->add_numa(0);
    EXPECT_TRUE(came_to(2, "0-7"));
    (*node)->remove_numa(1);
    (*node)->remove_numa(1);
    EXPECT_TRUE(came_to(3, "0-3"));
    (*node)->remove_numa(0);
    EXPECT_TRUE(came_to(4, "0-7"));
  }
  os_replace(nullptr);
}

}  // namespace
}  // namespace numa_test
