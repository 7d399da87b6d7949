// SPDX-License-Identifier: Apache-2.0
//
// A management library in the same file as the fake driver: all devices of FAKE_CUDA, regardless of
// CUDA_VISIBLE_DEVICES, and their interconnect.
//
// Environment, read when a session begins:
//   FAKE_NVML="nvlink=none,links=18,switch=on,speed=26562,level=50,processes=1,fail=…"
//     nvlink  all, none, or pairs of physical devices: 0-1+2-3       (none)
//     links   of each pair that is joined                            (18)
//     switch  on: the links end at switches; off: at the other GPU   (on)
//     speed   MB/s of each link; 0: not reported                     (26562)
//     level   nvmlGpuTopologyLevel_t of all pairs                    (50)
//     processes  that compute on each GPU                            (1)
//     fail    SYMBOL:CODE, may be given several times
//
// Threading: any thread, after the first session has begun.
#include "platform/cuda/nvml_abi.h"

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "config.h"

namespace {

using oh::cuda::Uuid;
using oh::cuda::fake::refuse;
namespace fake = oh::cuda::fake;
using namespace oh::cuda::nvml;  // NOLINT: its entry points are defined here

constexpr unsigned kFirstBus = 0x17;

struct Settings {
  std::string nvlink = "none";
  unsigned links = 18;
  bool switches = true;
  unsigned speed = 26562;
  int level = kSystem;
  unsigned processes = 1;
  std::map<std::string, Code> failures;

  bool joined(int a, int b) const {
    if (a == b || nvlink == "none") return false;
    if (nvlink == "all") return true;
    auto named = [&](int one, int two) {
      const std::string pair = std::to_string(one) + "-" + std::to_string(two);
      return ("+" + nvlink + "+").find("+" + pair + "+") != std::string::npos;
    };
    return named(a, b) || named(b, a);
  }
  // Returns the GPU at the other end of the links of `device`, or -1.
  int other(int device) const {
    for (int i = 0; i < fake::config().devices; ++i) {
      if (joined(device, i)) return i;
    }
    return -1;
  }
};

Settings read() {
  Settings out;
  const char* text = getenv("FAKE_NVML");
  std::string rest = text ? text : "";
  while (!rest.empty()) {
    const size_t comma = rest.find(',');
    const std::string one = rest.substr(0, comma);
    rest = comma == std::string::npos ? "" : rest.substr(comma + 1);
    const std::string key = one.substr(0, one.find('='));
    const std::string value = key.size() < one.size() ? one.substr(key.size() + 1) : "";
    if (key == "nvlink") {
      out.nvlink = value;
    } else if (key == "links") {
      out.links = static_cast<unsigned>(atoi(value.c_str()));
    } else if (key == "switch") {
      out.switches = value == "on";
    } else if (key == "speed") {
      out.speed = static_cast<unsigned>(atoi(value.c_str()));
    } else if (key == "level") {
      out.level = atoi(value.c_str());
    } else if (key == "processes") {
      out.processes = static_cast<unsigned>(atoi(value.c_str()));
    } else if (key == "fail" && value.find(':') != std::string::npos) {
      out.failures[value.substr(0, value.find(':'))] = atoi(value.c_str() + value.find(':') + 1);
    } else {
      refuse("FAKE_NVML: unknown setting \"" + one + "\"");
    }
  }
  return out;
}

Settings g_settings;
std::atomic<int> g_sessions{0};
std::atomic<int> g_open{0};

constexpr Code kUninitialized = 1;

Code begin(const char* symbol) {
  if (g_open.load() == 0) return kUninitialized;
  const auto failure = g_settings.failures.find(symbol);
  return failure == g_settings.failures.end() ? kSuccess : failure->second;
}

// A handle is the physical index plus 1.
Device handle_of(int physical) { return reinterpret_cast<Device>(uintptr_t(physical) + 1); }
int physical_of(Device device) { return static_cast<int>(reinterpret_cast<uintptr_t>(device)) - 1; }

std::string text_of(const Uuid& uuid) {
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

void place(int physical, PciInfo* info) {
  *info = PciInfo();
  info->bus = kFirstBus + static_cast<unsigned>(physical);
  snprintf(info->id, sizeof(info->id), "00000000:%02X:00.0", info->bus);
}

}  // namespace

#define FAKE_NVML_CALL(symbol) \
  if (Code code = begin(symbol); code != kSuccess) return code

extern "C" {
#define FAKE_NVML_API __attribute__((visibility("default")))

// Sessions since the start, and open sessions.
FAKE_NVML_API int fake_nvml_sessions() { return g_sessions.load(); }
FAKE_NVML_API int fake_nvml_open() { return g_open.load(); }

FAKE_NVML_API Code nvmlInit_v2() {
  g_settings = read();
  const auto failure = g_settings.failures.find("nvmlInit_v2");
  ++g_sessions;
  if (failure != g_settings.failures.end()) return failure->second;
  ++g_open;
  return kSuccess;
}

FAKE_NVML_API Code nvmlShutdown() {
  if (g_open.load() == 0) return kUninitialized;
  --g_open;
  return kSuccess;
}

FAKE_NVML_API const char* nvmlErrorString(Code code) {
  return code == kSuccess ? "Success" : code == kNotSupported ? "Not Supported" : "Fake Error";
}

FAKE_NVML_API Code nvmlDeviceGetHandleByUUID(const char* uuid, Device* device) {
  FAKE_NVML_CALL("nvmlDeviceGetHandleByUUID");
  for (int physical = 0; physical < fake::config().devices; ++physical) {
    if (text_of(fake::uuid_of(physical)) != uuid) continue;
    *device = handle_of(physical);
    return kSuccess;
  }
  return kNotFound;
}

FAKE_NVML_API Code nvmlDeviceGetComputeRunningProcesses_v3(Device, unsigned* count, void*) {
  FAKE_NVML_CALL("nvmlDeviceGetComputeRunningProcesses_v3");
  const bool room = *count >= g_settings.processes;
  *count = g_settings.processes;
  return room ? kSuccess : kInsufficientSize;
}

FAKE_NVML_API Code nvmlDeviceGetPciInfo_v3(Device device, PciInfo* info) {
  FAKE_NVML_CALL("nvmlDeviceGetPciInfo_v3");
  place(physical_of(device), info);
  return kSuccess;
}

FAKE_NVML_API Code nvmlDeviceGetP2PStatus(Device a, Device b, int index, int* status) {
  FAKE_NVML_CALL("nvmlDeviceGetP2PStatus");
  if (index != kP2pNvlink) return kInvalidArgument;
  constexpr int kP2pNotSupported = 5;
  *status = g_settings.joined(physical_of(a), physical_of(b)) ? kP2pOk : kP2pNotSupported;
  return kSuccess;
}

FAKE_NVML_API Code nvmlDeviceGetTopologyCommonAncestor(Device, Device, int* level) {
  FAKE_NVML_CALL("nvmlDeviceGetTopologyCommonAncestor");
  *level = g_settings.level;
  return kSuccess;
}

FAKE_NVML_API Code nvmlDeviceGetNvLinkState(Device device, unsigned link, int* active) {
  FAKE_NVML_CALL("nvmlDeviceGetNvLinkState");
  if (link >= kMostLinks) return kInvalidArgument;
  *active = g_settings.other(physical_of(device)) >= 0 && link < g_settings.links ? 1 : 0;
  return kSuccess;
}

FAKE_NVML_API Code nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned, unsigned* type) {
  FAKE_NVML_CALL("nvmlDeviceGetNvLinkRemoteDeviceType");
  *type = g_settings.switches ? kRemoteIsSwitch : kRemoteIsGpu;
  return kSuccess;
}

FAKE_NVML_API Code nvmlDeviceGetNvLinkRemotePciInfo_v2(Device device, unsigned, PciInfo* info) {
  FAKE_NVML_CALL("nvmlDeviceGetNvLinkRemotePciInfo_v2");
  place(g_settings.other(physical_of(device)), info);
  return kSuccess;
}

FAKE_NVML_API Code nvmlDeviceGetFieldValues(Device, int count, FieldValue* values) {
  FAKE_NVML_CALL("nvmlDeviceGetFieldValues");
  for (int i = 0; i < count; ++i) {
    const bool known = values[i].field == kFieldNvlinkSpeed && g_settings.speed > 0;
    values[i].code = known ? kSuccess : kNotSupported;
    values[i].value.number = g_settings.speed;
  }
  return kSuccess;
}

}  // extern "C"
