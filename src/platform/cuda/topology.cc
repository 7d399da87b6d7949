// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/topology.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "platform/cuda/nvml.h"

namespace oh::cuda {
namespace {

GpuLink unknown(const Status& status) {
  GpuLink link;
  link.why = status.text();
  return link;
}

// A GPU of a query.
struct Asked {
  nvml::Device device = nullptr;
  nvml::PciInfo pci{};
  uint64_t bandwidth = 0;
};

oh::Result<Asked> find(const nvml::Library& library, const std::string& uuid) {
  Asked asked;
  nvml::Code code = library.device_by_uuid(uuid.c_str(), &asked.device);
  if (code != nvml::kSuccess) return library.failure(code, "nvmlDeviceGetHandleByUUID", uuid);
  code = library.pci_info(asked.device, &asked.pci);
  if (code != nvml::kSuccess) return library.failure(code, "nvmlDeviceGetPciInfo_v3", uuid);
  nvml::FieldValue speed{};
  speed.field = nvml::kFieldNvlinkSpeed;
  if (library.field_values(asked.device, 1, &speed) == nvml::kSuccess &&
      speed.code == nvml::kSuccess) {
    asked.bandwidth = uint64_t{speed.value.number} * 1000000;
  }
  return asked;
}

bool same_place(const nvml::PciInfo& a, const nvml::PciInfo& b) {
  return a.domain == b.domain && a.bus == b.bus && a.device == b.device;
}

// Active links to the other GPU, and to devices that are no GPU. On a host with NVSwitches all
// links end at the switches.
struct LinkCount {
  unsigned direct = 0;
  unsigned switched = 0;
};

LinkCount count_links(const nvml::Library& library, const Asked& from, const Asked& to) {
  LinkCount count;
  for (unsigned link = 0; link < nvml::kMostLinks; ++link) {
    int active = 0;
    unsigned type = nvml::kRemoteIsSwitch;
    nvml::PciInfo remote{};
    if (library.link_state(from.device, link, &active) != nvml::kSuccess || active != 1) continue;
    if (library.link_remote_type(from.device, link, &type) != nvml::kSuccess ||
        type != nvml::kRemoteIsGpu) {
      ++count.switched;
    } else if (library.link_remote_pci(from.device, link, &remote) == nvml::kSuccess &&
               same_place(remote, to.pci)) {
      ++count.direct;
    }
  }
  return count;
}

GpuLink ask(const nvml::Library& library, const Asked& a, const Asked& b) {
  LinkReadings readings;
  int status = -1;
  readings.nvlink_access =
      library.p2p_status(a.device, b.device, nvml::kP2pNvlink, &status) == nvml::kSuccess &&
      status == nvml::kP2pOk;
  const LinkCount out = count_links(library, a, b);
  readings.direct = out.direct;
  readings.switched[0] = out.switched;
  readings.switched[1] = count_links(library, b, a).switched;
  nvml::Code code = library.common_ancestor(a.device, b.device, &readings.ancestor);
  if (code != nvml::kSuccess) readings.ancestor = -1;
  GpuLink link = link_of(readings);
  if (link.kind == OH_LINK_NVLINK) link.nvlink_bandwidth = std::min(a.bandwidth, b.bandwidth);
  if (link.kind == OH_LINK_UNKNOWN) {
    link.why = library.failure(code, "nvmlDeviceGetTopologyCommonAncestor", {}).text();
  }
  return link;
}

using Pair = std::pair<std::string, std::string>;  // of UUIDs, in ascending order
using Links = std::map<Pair, GpuLink>;

Pair pair_of(const std::string& a, const std::string& b) { return std::minmax(a, b); }

// Queries NVML for all pairs, in one session.
void learn(const std::string& path, const std::vector<Pair>& questions, Links* links) {
  oh::Result<const nvml::Library*> library = nvml::Library::open(path);
  std::optional<nvml::Session> session;
  if (library.ok()) session.emplace(**library);
  const Status& status = session ? session->status() : library.status();
  std::map<std::string, oh::Result<Asked>> gpus;
  for (const Pair& pair : questions) {
    GpuLink& link = (*links)[pair];
    if (!status.ok()) {
      link = unknown(status);
      continue;
    }
    auto gpu = [&](const std::string& uuid) -> oh::Result<Asked>& {
      auto known = gpus.find(uuid);
      if (known == gpus.end()) known = gpus.emplace(uuid, find(**library, uuid)).first;
      return known->second;
    };
    oh::Result<Asked>& a = gpu(pair.first);
    oh::Result<Asked>& b = gpu(pair.second);
    link = a.ok() && b.ok() ? ask(**library, *a, *b) : unknown((a.ok() ? b : a).status());
  }
}

}  // namespace

int compute_processes(const std::string& library, const std::string& uuid) {
  oh::Result<const nvml::Library*> opened = nvml::Library::open(library);
  if (!opened.ok()) return -1;
  nvml::Session session(**opened);
  nvml::Device device = nullptr;
  if (!session.status().ok() ||
      (*opened)->device_by_uuid(uuid.c_str(), &device) != nvml::kSuccess) {
    return -1;
  }
  // Without a buffer the call only returns the count.
  unsigned count = 0;
  nvml::Code code = (*opened)->compute_processes(device, &count, nullptr);
  bool known = code == nvml::kSuccess || code == nvml::kInsufficientSize;
  return known ? static_cast<int>(count) : -1;
}

GpuLink link_of(const LinkReadings& readings) {
  GpuLink link;
  if (readings.nvlink_access) {
    link.kind = OH_LINK_NVLINK;
    link.nvlinks = readings.direct > 0 ? readings.direct
                                       : std::min(readings.switched[0], readings.switched[1]);
    return link;
  }
  switch (readings.ancestor) {
    case nvml::kBoard:
    case nvml::kOneSwitch:
    case nvml::kSwitches:
      link.kind = OH_LINK_PCIE_SWITCH;
      break;
    case nvml::kHostBridge:
      link.kind = OH_LINK_PCIE_BRIDGE;
      break;
    case nvml::kNumaNode:
      link.kind = OH_LINK_PCIE_NODE;
      break;
    case nvml::kSystem:
      link.kind = OH_LINK_PCIE_SYSTEM;
      break;
    default:
      break;
  }
  return link;
}

std::string GpuLink::text() const {
  switch (kind) {
    case OH_LINK_UNKNOWN:
      return "not known: " + why;
    case OH_LINK_SAME:
      return "the same GPU";
    case OH_LINK_NVLINK:
      break;
    case OH_LINK_PCIE_SWITCH:
      return "PCIe, below one switch";
    case OH_LINK_PCIE_BRIDGE:
      return "PCIe, through one host bridge";
    case OH_LINK_PCIE_NODE:
      return "PCIe, between host bridges of one NUMA node";
    case OH_LINK_PCIE_SYSTEM:
      return "PCIe, across NUMA nodes";
  }
  std::string text =
      nvlinks == 0 ? "NVLink" : strf("NVLink, %u link%s", nvlinks, nvlinks == 1 ? "" : "s");
  if (nvlink_bandwidth > 0) {
    text += strf("%s %.1f GB/s each way", nvlinks == 0 ? "," : " of",
                 static_cast<double>(nvlink_bandwidth) / 1e9);
  }
  return text;
}

std::vector<GpuLink> links_among(const std::string& library,
                                 const std::vector<std::string>& uuids) {
  struct Known {
    std::mutex mutex;
    std::map<std::string, Links> by_library;
  };
  static Known* const known = new Known;
  // Held during the query: only threads with a query wait for it.
  std::lock_guard lock(known->mutex);
  Links& links = known->by_library[library];
  std::vector<Pair> questions;
  for (const std::string& a : uuids) {
    for (const std::string& b : uuids) {
      if (a < b && !links.count({a, b})) questions.emplace_back(a, b);
    }
  }
  if (!questions.empty()) learn(library, questions, &links);
  std::vector<GpuLink> all;
  for (const std::string& from : uuids) {
    for (const std::string& to : uuids) {
      if (from == to) {
        all.emplace_back().kind = OH_LINK_SAME;
      } else {
        all.push_back(links[pair_of(from, to)]);
      }
    }
  }
  return all;
}

PeerAccess peer_access(const Driver& driver, Device from, Device to) {
  PeerAccess access;
  if (from == to) return {true, true};
  int can = 0;
  access.reaches = driver.device_can_access_peer(&can, from, to) == kSuccess && can != 0;
  int atomics = 0;
  access.atomics = driver.device_p2p_attribute(&atomics, kP2pNativeAtomics, from, to) == kSuccess &&
                   atomics != 0;
  return access;
}

std::string why_no_native_atomics(const Driver& driver, Device from, Device to) {
  if (peer_access(driver, from, to).atomics) return {};
  return strf(
      "the link from cuda:%d to cuda:%d has no native atomics, as over PCIe: signals of kernels "
      "could be lost, and their stores of 16 bytes torn (nvidia-smi topo -p2p a)",
      from, to);
}

std::string why_not_nvlink(const std::string& library, const std::string& ours,
                           const std::string& theirs) {
  const GpuLink link = links_among(library, {ours, theirs})[1];
  if (link.kind == OH_LINK_SAME || link.kind == OH_LINK_NVLINK) return {};
  if (link.kind == OH_LINK_UNKNOWN) {
    return strf(
        "whether the link to %s has native atomics is not known: this process does not see that "
        "GPU (CUDA_VISIBLE_DEVICES), and how the two are joined is %s",
        theirs.c_str(), link.text().c_str());
  }
  return strf(
      "the link to %s is %s, without native atomics: signals of kernels could be lost, and their "
      "stores of 16 bytes torn",
      theirs.c_str(), link.text().c_str());
}

}  // namespace oh::cuda
