// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/device.h"

#include <charconv>

#include "platform/os/numa.h"

namespace oh::cuda {
namespace {

int attribute(const Driver& driver, Device device, DeviceAttribute which, int otherwise) {
  int value = otherwise;
  return driver.device_attribute(&value, which, device) == kSuccess ? value : otherwise;
}

oh::Result<DeviceFacts> facts_of(const Driver& driver, int index) {
  DeviceFacts facts;
  OH_CUDA_TRY(driver, device_get, &facts.ordinal, index);
  OH_CUDA_TRY(driver, device_uuid, &facts.uuid, facts.ordinal);
  char name[256] = {};
  OH_CUDA_TRY(driver, device_name, name, static_cast<int>(sizeof(name)) - 1, facts.ordinal);
  facts.name = name;
  facts.pci = strf("%04x:%02x:%02x.0",
                   static_cast<unsigned>(attribute(driver, facts.ordinal, kDevicePciDomain, 0)),
                   static_cast<unsigned>(attribute(driver, facts.ordinal, kDevicePciBus, 0)),
                   static_cast<unsigned>(attribute(driver, facts.ordinal, kDevicePciDevice, 0)));
  facts.numa = attribute(driver, facts.ordinal, kDeviceHostNuma, -1);
  facts.mps = attribute(driver, facts.ordinal, kDeviceMps, 0) != 0;
  if (facts.numa < 0) facts.numa = numa_node_of_pci(facts.pci);  // not reported by older drivers
  facts.major = attribute(driver, facts.ordinal, kDeviceMajor, 0);
  facts.minor = attribute(driver, facts.ordinal, kDeviceMinor, 0);
  facts.processors = attribute(driver, facts.ordinal, kDeviceProcessors, 1);
  return facts;
}

std::string lower(const std::string& text) {
  std::string made = text;
  for (char& c : made) {
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  }
  return made;
}

// Parses "cuda" or "cuda:N" to an ordinal, or -1.
int ordinal_in(const std::string& name) {
  constexpr size_t kPrefix = 5;  // "cuda:"
  if (name == "cuda") return 0;
  if (name.rfind("cuda:", 0) != 0 || name.size() == kPrefix) return -1;
  int ordinal = -1;
  const char* end = name.data() + name.size();
  auto [stop, fault] = std::from_chars(name.data() + kPrefix, end, ordinal);
  return fault == std::errc() && stop == end ? ordinal : -1;
}

}  // namespace

oh::Result<std::vector<DeviceFacts>> list_devices(const Driver& driver) {
  OH_RETURN_IF_ERROR(driver.usable());
  int count = 0;
  OH_CUDA_TRY(driver, device_count, &count);
  std::vector<DeviceFacts> devices;
  for (int index = 0; index < count; ++index) {
    OH_ASSIGN_OR_RETURN(DeviceFacts facts, facts_of(driver, index));
    devices.push_back(std::move(facts));
  }
  return devices;
}

std::string uuid_text(const Uuid& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += strf("%02x", static_cast<unsigned char>(uuid.bytes[i]));
  }
  return text;
}

std::optional<Device> find_device(const Driver& driver, const std::string& uuid) {
  int count = 0;
  if (driver.device_count(&count) != kSuccess) return {};
  for (int index = 0; index < count; ++index) {
    Device device = 0;
    Uuid found;
    if (driver.device_get(&device, index) == kSuccess &&
        driver.device_uuid(&found, device) == kSuccess && uuid_text(found) == uuid) {
      return device;
    }
  }
  return {};
}

std::string why_no_peer_access(const Driver& driver, Device device, Device other) {
  int can = 1;
  if (other == device || driver.device_can_access_peer(&can, device, other) != kSuccess ||
      can != 0) {
    return {};
  }
  return strf("there is no peer access from cuda:%d to cuda:%d (nvidia-smi topo -p2p r)", device,
              other);
}

oh::Result<Device> device_named(const Driver& driver, const std::string& name) {
  OH_ASSIGN_OR_RETURN(std::vector<DeviceFacts> devices, list_devices(driver));
  const std::string wanted = lower(name);
  const int index = ordinal_in(wanted);
  std::string there;
  for (const DeviceFacts& facts : devices) {
    if (facts.ordinal == index || lower(uuid_text(facts.uuid)) == wanted) {
      return facts.ordinal;
    }
    there += strf("%scuda:%d (%s, %s)", there.empty() ? "" : ", ", facts.ordinal,
                  facts.name.c_str(), uuid_text(facts.uuid).c_str());
  }
  return error(OH_ERR_INVALID,
               "there is no device \"%s\"; this process sees %s: name one of these as cuda:N or by "
               "its UUID (CUDA_VISIBLE_DEVICES decides which they are)",
               name.c_str(), there.empty() ? "none" : there.c_str());
}

}  // namespace oh::cuda
