// SPDX-License-Identifier: Apache-2.0
#include "gpu_driver.h"

#include <dlfcn.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <fstream>

namespace bench {
namespace {

constexpr const char* kLibrary = "libcuda.so.1";
constexpr size_t kNameSize = 256;

std::string library_name() {
  const char* named = std::getenv("ONEHOP_CUDA_LIBRARY");
  return named && *named ? named : kLibrary;
}

GpuDriver open_driver() {
  std::string name = library_name();
  if (name == "off") throw GpuError("ONEHOP_CUDA_LIBRARY is off");
  // Never closed: driver libraries do not survive that.
  void* library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) throw GpuError(std::string("no CUDA driver: ") + dlerror());
  GpuDriver driver;
#define BENCH_CUDA_LOAD(member, symbol, parameters)                                   \
  driver.member = reinterpret_cast<decltype(driver.member)>(dlsym(library, #symbol)); \
  if (!driver.member) throw GpuError(name + " has no " #symbol ": the driver is too old");
  OH_CUDA_FUNCTIONS(BENCH_CUDA_LOAD)
  OH_CUDA_TEST_FUNCTIONS(BENCH_CUDA_LOAD)
#undef BENCH_CUDA_LOAD
  BENCH_CUDA(driver, init, 0);
  return driver;
}

int ordinal_of(const std::string& name, int count) {
  int ordinal = 0;
  size_t colon = name.find(':');
  if (colon != std::string::npos) {
    const char* end = name.data() + name.size();
    auto found = std::from_chars(name.data() + colon + 1, end, ordinal);
    if (found.ec != std::errc() || found.ptr != end) ordinal = -1;
  }
  if (name.substr(0, colon) != "cuda" || ordinal < 0 || ordinal >= count) {
    throw GpuError("'" + name +
                   "' is no device: there are cuda:0 to cuda:" + std::to_string(count - 1));
  }
  return ordinal;
}

std::string uuid_text(const cuda::Uuid& uuid) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof(uuid.bytes); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    char digits[3];
    std::snprintf(digits, sizeof(digits), "%02x", static_cast<unsigned char>(uuid.bytes[i]));
    text += digits;
  }
  return text;
}

// The kernel knows the node of a PCI device; -1: it has none, or is not known.
int numa_node(std::string pci) {
  std::transform(pci.begin(), pci.end(), pci.begin(), [](char c) {
    return c >= 'A' && c <= 'F' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  std::ifstream file("/sys/bus/pci/devices/" + pci + "/numa_node");
  int node = -1;
  file >> node;
  return file ? node : -1;
}

DeviceFacts facts_of(const GpuDriver& driver, int ordinal, int count) {
  DeviceFacts facts;
  char name[kNameSize] = "";
  BENCH_CUDA(driver, device_name, name, static_cast<int>(sizeof(name)) - 1, ordinal);
  facts.name = name;
  cuda::Uuid uuid{};
  BENCH_CUDA(driver, device_uuid, &uuid, ordinal);
  facts.uuid = uuid_text(uuid);
  auto attribute = [&](cuda::DeviceAttribute which) {
    int value = 0;
    BENCH_CUDA(driver, device_attribute, &value, which, ordinal);
    return value;
  };
  facts.major = attribute(cuda::kDeviceMajor);
  facts.minor = attribute(cuda::kDeviceMinor);
  char pci[32];
  std::snprintf(pci, sizeof(pci), "%04x:%02x:%02x.0",
                static_cast<unsigned>(attribute(cuda::kDevicePciDomain)),
                static_cast<unsigned>(attribute(cuda::kDevicePciBus)),
                static_cast<unsigned>(attribute(cuda::kDevicePciDevice)));
  facts.pci = pci;
  facts.numa = numa_node(facts.pci);
  for (int other = 0; other < count; ++other) {
    int may = other == ordinal;
    if (!may) BENCH_CUDA(driver, device_can_access_peer, &may, ordinal, other);
    facts.peers.push_back(may != 0);
  }
  return facts;
}

}  // namespace

const GpuDriver& GpuDriver::open() {
  static const GpuDriver driver = open_driver();
  return driver;
}

void GpuDriver::check(cuda::Code code, const char* call) const {
  if (code == cuda::kSuccess) return;
  const char* name = nullptr;
  const char* text = nullptr;
  if (error_name(code, &name) != cuda::kSuccess || !name) name = "unknown code";
  if (error_string(code, &text) != cuda::kSuccess || !text) text = "no text";
  throw GpuError(std::string("the CUDA driver's ") + call + " failed: " + name + " (" +
                 std::to_string(code) + "), " + text);
}

Device::Device(const std::string& name) : driver_(GpuDriver::open()) {
  int count = 0;
  BENCH_CUDA(driver_, device_count, &count);
  ordinal_ = ordinal_of(name, count);
  BENCH_CUDA(driver_, primary_retain, &context_, ordinal_);
  Current current(*this);
  BENCH_CUDA(driver_, stream_create, &stream_, cuda::kStreamNonBlocking);
}

Device::~Device() {
  {
    Current current(*this);
    driver_.stream_destroy(stream_);
  }
  driver_.primary_release(ordinal_);
}

void Device::copy(void* to, const void* from, size_t size) const {
  if (size == 0) return;
  Current current(*this);
  BENCH_CUDA(driver_, memcpy_async, address_of(to), address_of(from), size, stream_);
  synchronize();
}

size_t Device::free_memory() const {
  Current current(*this);
  size_t available = 0;
  size_t total = 0;
  BENCH_CUDA(driver_, memory_info, &available, &total);
  return available;
}

GpuFacts gpu_facts() {
  const GpuDriver& driver = GpuDriver::open();
  GpuFacts facts;
  facts.library = library_name();
  BENCH_CUDA(driver, driver_version, &facts.version);
  int count = 0;
  BENCH_CUDA(driver, device_count, &count);
  for (int i = 0; i < count; ++i) facts.devices.push_back(facts_of(driver, i, count));
  return facts;
}

}  // namespace bench
