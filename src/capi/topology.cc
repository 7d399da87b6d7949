// SPDX-License-Identifier: Apache-2.0
//
// Topology of the machine: GPUs, their interconnect, NUMA nodes.
#include "platform/cuda/topology.h"
#include "capi/handles.h"
#include "platform/cuda/gpu.h"
#include "platform/os/numa.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

namespace {

struct Devices {
  Config config;
  const cuda::Driver* driver = nullptr;
  std::vector<cuda::DeviceFacts> all;

  static Result<Devices> look() {
    Devices found;
    OH_ASSIGN_OR_RETURN(found.config, Config::from_environment());
    OH_ASSIGN_OR_RETURN(found.driver, cuda::Driver::open(found.config.cuda_library));
    OH_ASSIGN_OR_RETURN(found.all, cuda::list_devices(*found.driver));
    return found;
  }
  Status has(size_t index) const {
    if (index < all.size()) return {};
    return error(OH_ERR_RANGE, "there are %zu devices", all.size());
  }
};

}  // namespace

extern "C" {

const char* oh_link_name(oh_link link) {
  switch (link) {
#define OH_LINK_CASE(name, value, text) \
  case name:                            \
    return text;
    OH_LINK_LIST(OH_LINK_CASE)
#undef OH_LINK_CASE
  }
  return "unknown";
}

oh_status oh_device_get(size_t index, oh_device_info* info) {
  OH_CHECK_ARGUMENT(info);
  Result<Devices> devices = Devices::look();
  if (!devices.ok()) return report(devices.status());
  Status status = devices->has(index);
  if (!status.ok()) return answer(status);
  thread_local cuda::DeviceFacts facts;
  thread_local std::string uuid;
  facts = devices->all[index];
  uuid = cuda::uuid_text(facts.uuid);
  oh_device_info value{};
  value.ordinal = facts.ordinal;
  value.name = facts.name.c_str();
  value.uuid = uuid.c_str();
  value.pci = facts.pci.c_str();
  value.major = facts.major;
  value.minor = facts.minor;
  value.numa_node = facts.numa;
  return report(write_out(value, info));
}

oh_status oh_device_get_link(size_t from, size_t to, oh_device_link* link) {
  OH_CHECK_ARGUMENT(link);
  Result<Devices> devices = Devices::look();
  if (!devices.ok()) return report(devices.status());
  const std::vector<cuda::DeviceFacts>& all = devices->all;
  Status status = devices->has(std::max(from, to));
  if (!status.ok()) return answer(status);
  // Query all links at once: a caller that needs one link usually needs the others, too.
  std::vector<std::string> uuids;
  uuids.reserve(all.size());
  for (const cuda::DeviceFacts& facts : all) uuids.push_back(cuda::uuid_text(facts.uuid));
  cuda::GpuLink found =
      cuda::links_among(devices->config.nvml_library, uuids)[from * all.size() + to];
  cuda::PeerAccess access = cuda::peer_access(*devices->driver, all[from].ordinal, all[to].ordinal);
  thread_local std::string text;
  text = found.text();
  oh_device_link value{};
  value.link = found.kind;
  value.nvlinks = found.nvlinks;
  value.nvlink_bandwidth = found.nvlink_bandwidth;
  value.peer_access = access.reaches;
  value.native_atomics = access.atomics;
  value.text = text.c_str();
  return report(write_out(value, link));
}

oh_status oh_numa_node_get(size_t index, oh_numa_node* node) {
  OH_CHECK_ARGUMENT(node);
  std::vector<int> nodes = numa_nodes();
  if (index >= nodes.size()) {
    return answer(error(OH_ERR_RANGE, "there are %zu NUMA nodes", nodes.size()));
  }
  thread_local std::string cpus;
  thread_local std::string usable;
  CpuSet all = cpus_of_node(nodes[index]);
  cpus = all.text();
  usable = (all & CpuSet::of_thread()).text();
  oh_numa_node value{};
  value.node = nodes[index];
  value.cpus = cpus.c_str();
  value.usable = usable.c_str();
  return report(write_out(value, node));
}

}  // extern "C"
