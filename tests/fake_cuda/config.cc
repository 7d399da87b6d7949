// SPDX-License-Identifier: Apache-2.0
//
// Reads the configuration from the environment.
//
// Threading: any thread; the first call reads.
#include "config.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace oh::cuda::fake {
namespace {

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  size_t start = 0;
  while (start <= text.size()) {
    size_t end = text.find(separator, start);
    if (end == std::string::npos) end = text.size();
    parts.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return parts;
}

uint64_t number(const std::string& key, std::string text) {
  uint64_t unit = 1;
  if (!text.empty()) {
    const char last = text.back();
    const int shift = last == 'K' ? 10 : last == 'M' ? 20 : last == 'G' ? 30 : 0;
    unit = uint64_t{1} << shift;
    if (shift != 0) text.pop_back();
  }
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) {
    refuse(key + " takes a number, not \"" + text + "\"");
  }
  return strtoull(text.c_str(), nullptr, 10) * unit;
}

bool on_or_off(const std::string& key, const std::string& text) {
  if (text != "on" && text != "off") refuse(key + " takes on or off, not \"" + text + "\"");
  return text == "on";
}

Blocking blocking(const std::string& text) {
  if (text == "device") return Blocking::kDevice;
  return on_or_off("blocking", text) ? Blocking::kKernels : Blocking::kOff;
}

void read_peers(const std::string& text, Config* out) {
  out->all_peers = text == "all";
  if (text == "all" || text == "none") return;
  for (const std::string& pair : split(text, '+')) {
    const auto ends = split(pair, '-');
    if (ends.size() != 2) refuse("p2p takes all, none or pairs as 0-1+2-3, not \"" + text + "\"");
    out->peers.emplace_back(number("p2p", ends[0]), number("p2p", ends[1]));
  }
}

void read_numa(const std::string& text, Config* out) {
  if (text == "none") {
    out->numa = {-1};
    return;
  }
  for (const std::string& node : split(text, '+')) {
    out->numa.push_back(static_cast<int>(number("numa", node)));
  }
}

void read_failure(const std::string& text, Config* out) {
  const auto parts = split(text, ':');
  if (parts.size() != 3) refuse("fail takes WHERE:N:CODE, not \"" + text + "\"");
  out->failures.push_back(
      {parts[0], number("fail", parts[1]), static_cast<Code>(number("fail", parts[2]))});
}

void read_setting(const std::string& key, const std::string& value, Config* out) {
  if (key == "devices") {
    const uint64_t count = number(key, value);
    if (count < 1 || count > kMostDevices) refuse("devices must be 1 to 64, not " + value);
    out->devices = static_cast<int>(count);
  } else if (key == "memory") {
    out->memory = number(key, value);
  } else if (key == "p2p") {
    read_peers(value, out);
  } else if (key == "atomics") {
    if (value != "all" && value != "none" && value != "lost") {
      refuse("atomics takes all, none or lost, not \"" + value + "\"");
    }
    out->atomics = value == "all";
    out->says_atomics = value != "none";
  } else if (key == "name") {
    out->name = value;
  } else if (key == "numa") {
    read_numa(value, out);
  } else if (key == "ipc") {
    out->ipc = on_or_off(key, value);
  } else if (key == "vmm") {
    out->vmm = on_or_off(key, value);
  } else if (key == "blocking") {
    out->blocking = blocking(value);
  } else if (key == "delay_us") {
    out->delay_us = static_cast<unsigned>(number(key, value));
  } else if (key == "code") {
    out->code = static_cast<int>(number(key, value));
  } else if (key == "fail") {
    read_failure(value, out);
  } else {
    refuse("unknown key \"" + key +
           "\"; there are devices, memory, p2p, atomics, name, numa, ipc, vmm, blocking, delay_us, "
           "code, fail");
  }
}

std::string uuid_text(int physical) {
  const Uuid uuid = uuid_of(physical);
  std::string text = "GPU-";
  for (int i = 0; i < 16; ++i) {
    char digits[3];
    snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += digits;
  }
  return text;
}

// As in the real driver, a name may be a prefix, and the list ends before the first unknown name.
int physical_of(const std::string& name, int devices) {
  if (name.empty()) return -1;
  if (name.find_first_not_of("0123456789") == std::string::npos) {
    const long ordinal = strtol(name.c_str(), nullptr, 10);
    return ordinal < devices ? static_cast<int>(ordinal) : -1;
  }
  if (name.rfind("GPU-", 0) != 0) return -1;
  for (int physical = 0; physical < devices; ++physical) {
    if (uuid_text(physical).rfind(name, 0) == 0) return physical;
  }
  return -1;
}

Config read() {
  Config out;
  const char* text = getenv("FAKE_CUDA");
  if (text != nullptr && *text != '\0') {
    for (const std::string& setting : split(text, ',')) {
      const size_t equals = setting.find('=');
      if (equals == std::string::npos) refuse("\"" + setting + "\" is not KEY=VALUE");
      read_setting(setting.substr(0, equals), setting.substr(equals + 1), &out);
    }
  }
  const char* visible = getenv("CUDA_VISIBLE_DEVICES");
  if (visible == nullptr) {
    for (int physical = 0; physical < out.devices; ++physical) out.visible.push_back(physical);
    return out;
  }
  for (const std::string& name : split(visible, ',')) {
    const int physical = physical_of(name, out.devices);
    if (physical < 0) break;
    if (std::count(out.visible.begin(), out.visible.end(), physical) != 0) {
      out.visible.clear();  // named twice: no devices, as in the real driver
      break;
    }
    out.visible.push_back(physical);
  }
  return out;
}

}  // namespace

bool Config::can_access(int physical, int other) const {
  if (physical == other || all_peers) return true;
  for (const auto& [one, two] : peers) {
    if ((one == physical && two == other) || (one == other && two == physical)) return true;
  }
  return false;
}

int Config::numa_of(int physical) const {
  if (numa.empty()) return 0;
  return numa[std::min(static_cast<size_t>(physical), numa.size() - 1)];
}

const Config& config() {
  static const Config* const kConfig = new Config(read());  // outlives every thread
  return *kConfig;
}

Uuid uuid_of(int physical) {
  Uuid uuid{};
  uint64_t state = 0x6f6e65686f70u + static_cast<uint64_t>(physical) * 0x9e3779b97f4a7c15u;
  for (char& byte : uuid.bytes) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<char>(state >> 56);
  }
  return uuid;
}

void refuse(const std::string& why) {
  fprintf(stderr, "fake CUDA driver: FAKE_CUDA: %s\n", why.c_str());
  abort();
}

}  // namespace oh::cuda::fake
