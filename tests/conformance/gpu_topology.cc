// SPDX-License-Identifier: Apache-2.0
//
// Endpoints and their GPUs' topology: threads run on the CPUs of the GPU's node, paths name the
// link, and a path worse than the hardware allows is reported once.
//
// Built like the core, without RTTI: one of its classes is overridden here.
#include <dirent.h>
#include <errno.h>
#include <sched.h>

#include <cstdio>
#include <fstream>
#include <sstream>

#include "conformance/fake_driver.h"
#include "platform/os/os.h"

namespace conformance::gpu_topology {
namespace {

using namespace std::chrono_literals;

// A host with one node, which has the last CPU that this process may use.
class OneCpuNode final : public oh::Os {
 public:
  int64_t read_file(const char* path, char* out, size_t size) override {
    if (std::string(path) != "/sys/devices/system/node/node0/cpulist") return -ENOENT;
    return snprintf(out, size, "%d\n", cpu());
  }
  static int cpu() {
    static const int last = [] {
      cpu_set_t all;
      CPU_ZERO(&all);
      ::sched_getaffinity(0, sizeof(all), &all);
      int found = 0;
      for (int i = 0; i < CPU_SETSIZE; ++i) {
        if (CPU_ISSET(i, &all)) found = i;
      }
      return found;
    }();
    return last;
  }
};

// Returns the CPUs of this process's thread of that name; "none": there is no such thread.
std::string cpus_of(const std::string& name) {
  DIR* directory = opendir("/proc/self/task");
  std::string cpus = "none";
  while (dirent* entry = directory ? readdir(directory) : nullptr) {
    std::ifstream status("/proc/self/task/" + std::string(entry->d_name) + "/status");
    std::string line;
    bool ours = false;
    while (std::getline(status, line)) {
      if (line.rfind("Name:", 0) == 0) ours = line.substr(line.find('\t') + 1) == name;
      if (ours && line.rfind("Cpus_allowed_list:", 0) == 0) cpus = line.substr(line.find('\t') + 1);
    }
  }
  if (directory) closedir(directory);
  return cpus;
}

LinkKind joined(const char* nvml) {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.env["ONEHOP_NVML_LIBRARY"] = FAKE_CUDA_LIBRARY;
  kind.env["FAKE_NVML"] = nvml;
  return kind;
}

void run_both_apart(const LinkKind& kind, const Role& both) { run_apart(kind, both, both); }

// Thread names, truncated as by the kernel.
constexpr char kWatcher[] = "onehop-watcher";
constexpr char kProgress[] = "onehop-progress";

TEST(GpuTopology, ThreadsAreNearTheGpu) {
  LinkKind kind = joined("");
  kind.env["ONEHOP_PROGRESS_THREAD"] = "on";
  run_both_apart(kind, [](Side& side) {
    oh::os_replace(new OneCpuNode);
    const std::string before = cpus_of("conformance_tes");
    const std::string near = std::to_string(OneCpuNode::cpu());
    side.connect();
    EXPECT_TRUE(eventually([&] { return cpus_of(kWatcher) == near; })) << cpus_of(kWatcher);
    EXPECT_TRUE(eventually([&] { return cpus_of(kProgress) == near; })) << cpus_of(kProgress);
    EXPECT_EQ(cpus_of("conformance_tes"), before);
    side.sync();
    side.disconnect();
  });
}

TEST(GpuTopology, ThreadsStayWhereTheyAreWhenAskedTo) {
  LinkKind kind = joined("");
  kind.env["ONEHOP_PROGRESS_THREAD"] = "on";
  kind.env["ONEHOP_NUMA"] = "off";
  run_both_apart(kind, [](Side& side) {
    oh::os_replace(new OneCpuNode);
    const std::string before = cpus_of("conformance_tes");
    side.connect();
    Buffer buffer = side.buffer(100000);
    if (side.number() == 0) side.peer().send(buffer.data(), buffer.size(), 1, 20s);
    if (side.number() == 1) side.peer().recv(buffer.data(), buffer.size(), 1, 20s);
    EXPECT_EQ(cpus_of(kWatcher), before);
    EXPECT_EQ(cpus_of(kProgress), before);
    side.sync();
    side.disconnect();
  });
}

// Returns the reason of the path from device to device, for messages that have bytes.
std::string why_between_devices(Side& side) {
  auto row = onehop::detail::sized<oh_path_row>();
  for (size_t i = 0; oh_peer_get_path(side.peer().get(), i, &row) == OH_OK; ++i) {
    const bool devices = row.source == std::string("device") && row.target == row.source;
    if (devices && row.last > 0) return row.why;
  }
  return "no such row";
}

TEST(GpuTopology, PathsNameTheLink) {
  for (const auto& [nvml, words] : std::map<const char*, const char*>{
           {"nvlink=0-1,speed=0", ", over NVLink, 18 links"},
           {"nvlink=0-1,switch=off,links=4", ", over NVLink, 4 links of 26.6 GB/s each way"},
           {"level=50", ", over PCIe, across NUMA nodes"},
           {"fail=nvmlInit_v2:9", "into the mapped buffer"}}) {
    run_both_apart(joined(nvml), [expected = words](Side& side) {
      side.connect();
      const std::string why = why_between_devices(side);
      EXPECT_TRUE(why.ends_with(expected)) << why;
      side.sync();
      side.disconnect();
    });
  }
}

// Returns how many processes of the test logged the warning. The log goes to its own file.
size_t warnings(const char* nvml, const char* access) {
  char name[] = "/tmp/onehop_topology_XXXXXX";
  close(mkstemp(name));
  LinkKind kind = joined(nvml);
  kind.env["ONEHOP_LOG"] = "warn";
  kind.env["ONEHOP_LOG_FILE"] = name;
  kind.env["FAKE_CUDA"] = "devices=2,p2p=" + std::string(access);
  run_both_apart(kind, [](Side& side) {
    for (int i = 0; i < 2; ++i) {
      side.connect();
      side.sync();
      side.disconnect();
    }
  });
  std::stringstream text;
  text << std::ifstream(name).rdbuf();
  unlink(name);
  size_t count = 0;
  const std::string words = "device memory takes a long way";
  for (size_t at = text.str().find(words); at != std::string::npos; ++count) {
    at = text.str().find(words, at + 1);
  }
  return count;
}

TEST(GpuTopology, AWayLongerThanTheHardwareAllowsIsSaidOnce) {
  EXPECT_EQ(warnings("nvlink=all", "none"), 2u);  // once per process
  // The hardware has no better path.
  EXPECT_EQ(warnings("nvlink=none", "none"), 0u);
  EXPECT_EQ(warnings("nvlink=all", "all"), 0u);
  EXPECT_EQ(warnings("fail=nvmlInit_v2:9", "none"), 0u);
}

}  // namespace
}  // namespace conformance::gpu_topology
