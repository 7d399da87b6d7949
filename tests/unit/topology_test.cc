// SPDX-License-Identifier: Apache-2.0
//
// The connections of GPUs, from NVML's data: the fake NVML, with the fake driver's devices 0 and 1.
#include "platform/cuda/topology.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "onehop/onehop.h"
#include "platform/cuda/nvml.h"
#include "unit/fake_gpu.h"
#include "unit/fake_numa.h"
#include "unit/support.h"

namespace topology_test {
namespace {

using namespace oh;
using cuda::GpuLink;
using cuda::LinkReadings;
using ::testing::HasSubstr;
using unit::fails_with;
using unit::FakeGpu;

TEST(LinkTest, IsOfTheKindThatJoins) {
  struct Row {
    LinkReadings readings;
    oh_link kind;
    unsigned nvlinks;
    const char* text;
  };
  const Row table[] = {
      {{true, 0, {18, 18}, 50}, OH_LINK_NVLINK, 18, "NVLink, 18 links"},
      {{true, 0, {18, 12}, 50}, OH_LINK_NVLINK, 12, "NVLink, 12 links"},
      {{true, 4, {0, 0}, 40}, OH_LINK_NVLINK, 4, "NVLink, 4 links"},
      {{true, 1, {2, 2}, 40}, OH_LINK_NVLINK, 1, "NVLink, 1 link"},
      {{true, 0, {0, 0}, -1}, OH_LINK_NVLINK, 0, "NVLink"},
      // Links to other devices do not count.
      {{false, 0, {18, 18}, 50}, OH_LINK_PCIE_SYSTEM, 0, "PCIe, across NUMA nodes"},
      {{false, 0, {0, 0}, 0}, OH_LINK_PCIE_SWITCH, 0, "one switch"},
      {{false, 0, {0, 0}, 10}, OH_LINK_PCIE_SWITCH, 0, "one switch"},
      {{false, 0, {0, 0}, 20}, OH_LINK_PCIE_SWITCH, 0, "one switch"},
      {{false, 0, {0, 0}, 30}, OH_LINK_PCIE_BRIDGE, 0, "one host bridge"},
      {{false, 0, {0, 0}, 40}, OH_LINK_PCIE_NODE, 0, "of one NUMA node"},
      {{false, 0, {0, 0}, 45}, OH_LINK_UNKNOWN, 0, "not known"},
      {{false, 0, {0, 0}, -1}, OH_LINK_UNKNOWN, 0, "not known"},
  };
  for (const Row& row : table) {
    GpuLink link = link_of(row.readings);
    EXPECT_EQ(link.kind, row.kind) << row.text;
    EXPECT_EQ(link.nvlinks, row.nvlinks) << row.text;
    EXPECT_THAT(link.text(), HasSubstr(row.text));
  }
  GpuLink fast;
  fast.kind = OH_LINK_NVLINK;
  fast.nvlink_bandwidth = 26'562'000'000;
  EXPECT_EQ(fast.text(), "NVLink, 26.6 GB/s each way");
  fast.nvlinks = 18;
  EXPECT_EQ(fast.text(), "NVLink, 18 links of 26.6 GB/s each way");
}

// The fake library under a different name for each test, since results are cached by name.
class NvmlTest : public ::testing::Test {
 protected:
  NvmlTest() : driver_(*FakeGpu::get().driver) {
    const std::string test = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    path_ = dir_.path() + "/" + test + ".so";
    EXPECT_EQ(symlink(FAKE_CUDA_LIBRARY, path_.c_str()), 0);
    void* handle = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    sessions_ = reinterpret_cast<int (*)()>(dlsym(handle, "fake_nvml_sessions"));
    open_ = reinterpret_cast<int (*)()>(dlsym(handle, "fake_nvml_open"));
    Result<std::vector<cuda::DeviceFacts>> devices = cuda::list_devices(driver_);
    EXPECT_TRUE(unit::is_ok(devices));
    for (const cuda::DeviceFacts& facts : *devices) uuids_.push_back(cuda::uuid_text(facts.uuid));
  }
  void SetUp() override { ASSERT_EQ(uuids_.size(), 2u); }
  ~NvmlTest() override { unsetenv("FAKE_NVML"); }

  void set(const char* settings) { setenv("FAKE_NVML", settings, 1); }
  GpuLink link() { return cuda::links_among(path_, uuids_)[1]; }

  const cuda::Driver& driver_;
  unit::TempDir dir_;
  std::string path_;
  std::vector<std::string> uuids_;
  int (*sessions_)();
  int (*open_)();
};

TEST_F(NvmlTest, IsAskedOnceAndLetGo) {
  set("nvlink=all");
  const int before = sessions_();
  std::vector<GpuLink> links = cuda::links_among(path_, uuids_);
  ASSERT_EQ(links.size(), 4u);
  EXPECT_EQ(links[0].kind, OH_LINK_SAME);
  EXPECT_EQ(links[1].kind, OH_LINK_NVLINK);
  EXPECT_EQ(links[1].text(), "NVLink, 18 links of 26.6 GB/s each way");
  EXPECT_EQ(links[2].text(), links[1].text());
  EXPECT_EQ(links[3].kind, OH_LINK_SAME);
  EXPECT_EQ(sessions_(), before + 1);
  EXPECT_EQ(open_(), 0);
  set("nvlink=none");
  EXPECT_EQ(cuda::links_among(path_, {uuids_[1], uuids_[0]})[1].kind, OH_LINK_NVLINK);
  EXPECT_EQ(sessions_(), before + 1);
}

TEST_F(NvmlTest, CountsLinksToTheOtherGpu) {
  set("nvlink=0-1,switch=off,links=4,speed=0");
  EXPECT_EQ(link().text(), "NVLink, 4 links");
}

TEST_F(NvmlTest, TellsWhatOfPcieJoinsThem) {
  set("level=30");
  EXPECT_EQ(link().kind, OH_LINK_PCIE_BRIDGE);
}

// For lanes of kernels: from the driver, or from NVML for a GPU that the driver does not show.
TEST_F(NvmlTest, TellsWhetherKernelsMayShareWords) {
  EXPECT_EQ(cuda::why_no_native_atomics(driver_, 0, 0), "");
  EXPECT_EQ(cuda::why_no_native_atomics(driver_, 0, 1), "") << "the fake's links have atomics";
  EXPECT_THAT(cuda::why_no_native_atomics(driver_, 0, 7), HasSubstr("has no native atomics"));
  set("nvlink=0-1");
  EXPECT_EQ(cuda::why_not_nvlink(path_, uuids_[0], uuids_[1]), "");
  EXPECT_EQ(cuda::why_not_nvlink(path_, uuids_[0], uuids_[0]), "");
  EXPECT_THAT(cuda::why_not_nvlink(path_, uuids_[0], "GPU-none"),
              HasSubstr("not known: nvmlDeviceGetHandleByUUID"));
}

TEST_F(NvmlTest, SaysThatKernelsMayNotShareWordsOverPcie) {
  set("level=40");
  EXPECT_THAT(cuda::why_not_nvlink(path_, uuids_[0], uuids_[1]),
              HasSubstr("is PCIe, between host bridges of one NUMA node, without native atomics"));
}

TEST_F(NvmlTest, DoesNotKnowEveryGpu) {
  set("");
  std::vector<GpuLink> links = cuda::links_among(path_, {uuids_[0], "GPU-none", uuids_[1]});
  EXPECT_EQ(links[1].kind, OH_LINK_UNKNOWN);
  EXPECT_THAT(links[1].why, HasSubstr("nvmlDeviceGetHandleByUUID(GPU-none) failed"));
  EXPECT_EQ(links[2].kind, OH_LINK_PCIE_SYSTEM);
}

TEST_F(NvmlTest, FailsAtItsBeginning) {
  set("fail=nvmlInit_v2:9");
  EXPECT_EQ(link().kind, OH_LINK_UNKNOWN);
  EXPECT_THAT(link().text(), HasSubstr("not known: nvmlInit_v2() failed: Fake Error (9)"));
  EXPECT_EQ(open_(), 0);
}

// Each call fails alone: the others still provide their data.
TEST_F(NvmlTest, FailsLater) {
  struct Row {
    const char* settings;
    const char* text;
  };
  const Row table[] = {
      {"nvlink=all,fail=nvmlDeviceGetPciInfo_v3:3", "nvmlDeviceGetPciInfo_v3("},
      {"nvlink=all,fail=nvmlDeviceGetP2PStatus:3", "PCIe, across NUMA nodes"},
      {"nvlink=all,fail=nvmlDeviceGetNvLinkState:3,speed=0", "NVLink"},
      {"nvlink=all,fail=nvmlDeviceGetNvLinkRemoteDeviceType:3", "NVLink, 18 links"},
      {"nvlink=all,switch=off,fail=nvmlDeviceGetNvLinkRemotePciInfo_v2:3", "NVLink, 26.6 GB/s"},
      {"nvlink=all,fail=nvmlDeviceGetFieldValues:3", "NVLink, 18 links"},
      {"nvlink=all,fail=nvmlDeviceGetTopologyCommonAncestor:3", "NVLink, 18 links"},
      {"fail=nvmlDeviceGetTopologyCommonAncestor:3",
       "nvmlDeviceGetTopologyCommonAncestor() failed"},
  };
  int number = 0;
  for (const Row& row : table) {
    set(row.settings);
    const std::string path = path_ + std::to_string(++number);
    ASSERT_EQ(symlink(FAKE_CUDA_LIBRARY, path.c_str()), 0);
    EXPECT_THAT(cuda::links_among(path, uuids_)[1].text(), HasSubstr(row.text)) << row.settings;
    EXPECT_EQ(open_(), 0) << row.settings;
  }
}

TEST_F(NvmlTest, IsAbsent) {
  EXPECT_TRUE(fails_with(cuda::nvml::Library::open("off"), OH_ERR_NOT_VIABLE, "switched off"));
  EXPECT_TRUE(fails_with(cuda::nvml::Library::open("/nowhere/libnvidia-ml.so"), OH_ERR_NOT_VIABLE,
                         "ONEHOP_NVML_LIBRARY"));
  EXPECT_TRUE(fails_with(cuda::nvml::Library::open("libm.so.6"), OH_ERR_NOT_VIABLE,
                         "libm.so.6 lacks nvml"));
  GpuLink link = cuda::links_among("/nowhere/libnvidia-ml.so", uuids_)[1];
  EXPECT_EQ(link.kind, OH_LINK_UNKNOWN);
  EXPECT_THAT(link.text(), HasSubstr("not known: no NVML: dlopen(/nowhere/libnvidia-ml.so)"));
  // The driver still reports peer access.
  cuda::PeerAccess access = cuda::peer_access(driver_, 0, 1);
  EXPECT_TRUE(access.reaches);
  EXPECT_TRUE(access.atomics);
  FakeGpu::get().fail("cuDeviceGetP2PAttribute", 0, cuda::kNotSupported);
  EXPECT_FALSE(cuda::peer_access(driver_, 0, 1).atomics);
  FakeGpu::get().clear_failures();
}

// The driver does not report the node: the host does, by the PCI address.
TEST_F(NvmlTest, TheHostTellsTheNode) {
  unit::FakeNuma numa;
  numa.files["/sys/bus/pci/devices/0000:00:00.0/numa_node"] = "3\n";
  EXPECT_EQ((*cuda::list_devices(driver_))[0].numa, 0);
  FakeGpu::get().fail("cuDeviceGetAttribute", 0, cuda::kInvalidValue);
  Result<std::vector<cuda::DeviceFacts>> devices = cuda::list_devices(driver_);
  FakeGpu::get().clear_failures();
  ASSERT_TRUE(unit::is_ok(devices));
  EXPECT_EQ((*devices)[0].numa, 3);
}

TEST_F(NvmlTest, IsSeenThroughTheCApi) {
  set("nvlink=all");
  setenv("ONEHOP_CUDA_LIBRARY", FAKE_CUDA_LIBRARY, 1);
  setenv("ONEHOP_NVML_LIBRARY", path_.c_str(), 1);
  oh_device_info device{};
  device.struct_size = sizeof(device);
  EXPECT_EQ(oh_device_get(1, &device), OH_OK);
  EXPECT_EQ(device.ordinal, 1);
  EXPECT_EQ(device.uuid, uuids_[1]);
  EXPECT_EQ(oh_device_get(2, &device), OH_ERR_RANGE);
  EXPECT_EQ(oh_device_get(0, nullptr), OH_ERR_INVALID);
  oh_device_link link{};
  EXPECT_EQ(oh_device_get_link(0, 1, &link), OH_ERR_INVALID);  // no struct_size
  link.struct_size = sizeof(link);
  EXPECT_EQ(oh_device_get_link(0, 1, &link), OH_OK);
  EXPECT_EQ(link.link, OH_LINK_NVLINK);
  EXPECT_EQ(link.peer_access, 1);
  EXPECT_EQ(oh_device_get_link(1, 1, &link), OH_OK);
  EXPECT_EQ(link.link, OH_LINK_SAME);
  EXPECT_EQ(oh_device_get_link(0, 2, &link), OH_ERR_RANGE);
  EXPECT_EQ(oh_device_get_link(2, 0, &link), OH_ERR_RANGE);
  setenv("ONEHOP_CUDA_LIBRARY", "off", 1);
  EXPECT_EQ(oh_device_get(0, &device), OH_ERR_NOT_VIABLE);
  EXPECT_EQ(oh_device_get_link(0, 0, &link), OH_ERR_NOT_VIABLE);
  unsetenv("ONEHOP_CUDA_LIBRARY");
  unsetenv("ONEHOP_NVML_LIBRARY");
  EXPECT_STREQ(oh_link_name(OH_LINK_PCIE_NODE), "pcie_node");
  EXPECT_STREQ(oh_link_name(static_cast<oh_link>(OH_LINK_PCIE_SYSTEM + 1)), "unknown");
}

TEST(NumaApiTest, NodesAreSeenThroughTheCApi) {
  unit::FakeNuma numa;
  oh_numa_node node{};
  node.struct_size = sizeof(node);
  EXPECT_EQ(oh_numa_node_get(0, &node), OH_ERR_RANGE);
  numa.files["/sys/devices/system/node/online"] = "0-1\n";
  numa.add_node(1, "4-11");
  EXPECT_EQ(oh_numa_node_get(1, &node), OH_OK);
  EXPECT_EQ(node.node, 1);
  EXPECT_STREQ(node.cpus, "4-11");
  EXPECT_STREQ(node.usable, "4-7");
  EXPECT_EQ(oh_numa_node_get(2, &node), OH_ERR_RANGE);
}

}  // namespace
}  // namespace topology_test
