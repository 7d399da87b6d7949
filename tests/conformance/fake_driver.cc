// SPDX-License-Identifier: Apache-2.0
#include "conformance/fake_driver.h"
#include "sanitizers.h"

#include <dirent.h>
#include <dlfcn.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

namespace conformance {
namespace {

FakeDriver load() {
  void* handle = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
  FakeDriver driver;
#define CONFORMANCE_LOAD(name) \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(handle, "fake_cuda_" #name));
  CONFORMANCE_CONTROL(CONFORMANCE_LOAD)
#undef CONFORMANCE_LOAD
  return driver;
}

size_t open_descriptors() {
  DIR* directory = opendir("/proc/self/fd");
  if (!directory) return 0;
  size_t count = 0;
  while (readdir(directory)) ++count;
  closedir(directory);
  return count;
}

}  // namespace

const FakeDriver& fake_driver() {
  static const FakeDriver driver = load();
  return driver;
}

Open Open::now() {
  Open open;
  fake_driver().counts(&open.driver);
  open.descriptors = open_descriptors();
  return open;
}

Open Open::settled() {
  Open last = now();
  eventually([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(30));
    Open former = std::exchange(last, now());
    return former == last;
  });
  return last;
}

std::string Open::text() const {
  std::string text;
  auto add = [&](const char* name, size_t count) {
    text += std::string(name) + " " + std::to_string(count) + ", ";
  };
  add("contexts", driver.contexts);
  add("streams", driver.streams);
  add("events", driver.events);
  add("allocations", driver.allocations);
  add("imports", driver.imports);
  add("host registrations", driver.host_registrations);
  add("reservations", driver.reservations);
  add("mappings", driver.mappings);
  add("VMM handles", driver.vmm_handles);
  add("pools", driver.pools);
  add("modules", driver.modules);
  add("graphs", driver.graphs);
  add("graph execs", driver.graph_execs);
  return text + std::to_string(descriptors) + " descriptors";
}

::testing::AssertionResult comes_back_to(const Open& before, bool with_descriptors) {
  Open now;
  bool same = eventually([&] {
    now = Open::now();
    if (!with_descriptors) now.descriptors = before.descriptors;
    return now == before;
  });
  if (same) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "open is " << now.text() << "; was " << before.text();
}

LinkKind between_gpus(MemoryKind kind) {
  LinkKind made;
  made.name = memory_name(kind);
  made.device[1] = 1;
  made.device[0] = 0;
  made.driver = FAKE_CUDA_LIBRARY;
  made.env = {{"ONEHOP_LOG", "error"},
              {"FAKE_CUDA", "devices=2"},
              {"ONEHOP_CUDA_LIBRARY", FAKE_CUDA_LIBRARY}};
  return made.with(kind);
}

LinkKind between_hosts(oh_path path, LinkKind kind) {
  kind.path = path;
  if (path == OH_PATH_SOCKET) {
    kind.name += "_no_segment";
    kind.env["ONEHOP_SEGMENT"] = "off";
  } else {
    kind.name += "_ucx_tcp";
    kind.env["ONEHOP_TRANSPORT"] = "ucx";
    kind.env["UCX_TLS"] = "tcp";
    kind.env["UCX_NET_DEVICES"] = "lo";
  }
  return kind;
}

std::vector<LinkKind> device_message_kinds() {
  std::vector<LinkKind> kinds;
  for (MemoryKind kind : kDeviceKinds) kinds.push_back(between_gpus(kind));
  LinkKind first = between_gpus(kDeviceKinds[0]);
  kinds.push_back(between_hosts(OH_PATH_UCX, first));
  if (!kSanitized) kinds.push_back(between_hosts(OH_PATH_SOCKET, first));
  return kinds;
}

const char* memory_name(MemoryKind kind) {
  constexpr const char* kNames[] = {"private", "shared", "malloc",  "inside", "vmm",
                                    "pool",    "async",  "managed", "pinned"};
  return kNames[static_cast<size_t>(kind)];
}

}  // namespace conformance
