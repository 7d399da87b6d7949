// SPDX-License-Identifier: Apache-2.0
//
// The contract with at least one side in device memory: every kind of memory, between two processes
// and within one. On the fake driver, or on the machine's own GPUs with REAL_GPUS=1.
#include <cstdlib>

#include "conformance/fake_driver.h"
#include "sanitizers.h"

namespace conformance::gpu {
namespace {

std::string driver() { return std::getenv("REAL_GPUS") ? "" : FAKE_CUDA_LIBRARY; }

LinkKind gpu_kind(const char* name, MemoryKind first, MemoryKind second, oh_path path) {
  LinkKind kind;
  kind.name = name;
  kind.path = path;
  kind.memory[0] = first;
  kind.memory[1] = second;
  kind.device[0] = 0;
  kind.device[1] = 1;
  kind.driver = driver();
  kind.env = {{"ONEHOP_LOG", "error"}, {"FAKE_CUDA", "devices=2"}};
  if (!kind.driver.empty()) kind.env["ONEHOP_CUDA_LIBRARY"] = kind.driver;
  return kind;
}

LinkKind same(const char* name, MemoryKind kind, oh_path path) {
  return gpu_kind(name, kind, kind, path);
}

LinkKind threads(LinkKind kind) {
  kind.name = "threads_" + kind.name;
  kind.processes = false;
  if (kind.path == OH_PATH_CUDA_IPC) kind.path = OH_PATH_LOCAL;
  return kind;
}

LinkKind one_gpu(LinkKind kind) {
  kind.name = "one_gpu_" + kind.name;
  kind.device[1] = 0;
  return kind;
}

LinkKind without_p2p(LinkKind kind) {
  kind.name += "_without_p2p";
  kind.env["FAKE_CUDA"] = "devices=2,p2p=none";
  kind.path = OH_PATH_RELAY;
  return kind;
}

LinkKind without_ipc(LinkKind kind) {
  kind.name += "_without_ipc";
  kind.env["ONEHOP_CUDA_IPC"] = "off";
  kind.path = OH_PATH_RELAY;
  return kind;
}

// The initiator's engine can access the target, whatever the initiator's own memory.
LinkKind put_by(oh_path path, LinkKind kind) {
  kind.put_path = path;
  return kind;
}

LinkKind with_worker(LinkKind kind) {
  kind.name += "_worker";
  kind.env["ONEHOP_WORKER"] = "1";
  return kind;
}

// All transfers wait for a single buffer, again and again.
LinkKind few_buffers(LinkKind kind) {
  kind.name += "_few_buffers";
  kind.env["ONEHOP_STAGING_BUFFER"] = "65536";
  kind.env["ONEHOP_STAGING_BUFFERS"] = "1";
  return kind;
}

// The second side's endpoint has no GPU.
LinkKind host_endpoint(LinkKind kind) {
  kind.name += "_endpoint";
  kind.device[1] = -1;
  return kind;
}

std::vector<LinkKind> all_kinds() {
  using enum MemoryKind;
  LinkKind malloc = same("malloc", kMalloc, OH_PATH_CUDA_IPC);
  return {
      malloc,
      with_worker(malloc),
      one_gpu(malloc),
      threads(malloc),
      same("inside", kInside, OH_PATH_CUDA_IPC),
      same("vmm", kVmm, OH_PATH_CUDA_IPC),
      same("pool", kPool, OH_PATH_CUDA_IPC),
      gpu_kind("async_and_malloc", kAsync, kMalloc, OH_PATH_CUDA_IPC),
      gpu_kind("malloc_and_async", kMalloc, kAsync, OH_PATH_CUDA_IPC),
      // Neither side can map the other's memory.
      same("async", kAsync, OH_PATH_STAGED),
      same("managed", kManaged, OH_PATH_STAGED),
      without_p2p(malloc),
      without_ipc(malloc),
      without_p2p(same("async", kAsync, OH_PATH_RELAY)),
      threads(same("async", kAsync, OH_PATH_STAGED)),
      // One side uses host memory.
      gpu_kind("malloc_and_host", kMalloc, kPrivate, OH_PATH_RELAY),
      put_by(OH_PATH_CUDA_IPC, gpu_kind("host_and_malloc", kPrivate, kMalloc, OH_PATH_RELAY)),
      // The engine of the side with pinned memory copies.
      gpu_kind("pinned_and_vmm", kPinned, kVmm, OH_PATH_CUDA_IPC),
      gpu_kind("malloc_and_pinned", kMalloc, kPinned, OH_PATH_CUDA_IPC),
      threads(gpu_kind("malloc_and_pinned", kMalloc, kPinned, OH_PATH_CUDA_IPC)),
      // The other one uses host memory that onehop shares: the engine reaches it.
      gpu_kind("malloc_and_shared", kMalloc, kShared, OH_PATH_CUDA_IPC),
      gpu_kind("shared_and_vmm", kShared, kVmm, OH_PATH_CUDA_IPC),
      gpu_kind("async_and_shared", kAsync, kShared, OH_PATH_CUDA_IPC),
      threads(gpu_kind("malloc_and_shared", kMalloc, kShared, OH_PATH_CUDA_IPC)),
      host_endpoint(gpu_kind("malloc_and_shared", kMalloc, kShared, OH_PATH_CUDA_IPC)),
      host_endpoint(gpu_kind("malloc_and_host", kMalloc, kPrivate, OH_PATH_RELAY)),
      put_by(OH_PATH_LOCAL, threads(gpu_kind("malloc_and_host", kMalloc, kPrivate, OH_PATH_RELAY))),
  };
}

// Under a sanitizer, which is slow, one kind for each path of the bytes.
std::vector<LinkKind> gpu_kinds() {
  std::vector<LinkKind> kinds = all_kinds();
  // A machine's real GPUs cannot be configured without peer access.
  if (std::getenv("REAL_GPUS")) {
    std::erase_if(kinds, [](const LinkKind& kind) { return kind.name.ends_with("_without_p2p"); });
  }
  if (!kSanitized) return kinds;
  std::erase_if(kinds, [](const LinkKind& kind) {
    return kind.name != "malloc" && kind.name != "threads_async" &&
           kind.name != "malloc_and_shared";
  });
  return kinds;
}

std::vector<LinkKind> between_hosts_kinds() {
  using enum MemoryKind;
  LinkKind malloc = same("malloc", kMalloc, OH_PATH_UCX);
  LinkKind host = gpu_kind("malloc_and_host", kMalloc, kPrivate, OH_PATH_UCX);
  if (kSanitized) return {between_hosts(OH_PATH_UCX, malloc)};
  return {
      between_hosts(OH_PATH_UCX, malloc),
      between_hosts(OH_PATH_SOCKET, malloc),
      few_buffers(between_hosts(OH_PATH_UCX, malloc)),
      between_hosts(OH_PATH_UCX, host_endpoint(host)),
      between_hosts(OH_PATH_UCX, same("async", kAsync, OH_PATH_UCX)),
  };
}

// For the whole contract, which takes long, one kind for each path.
std::vector<LinkKind> whole_between_hosts_kinds() {
  std::vector<LinkKind> kinds = between_hosts_kinds();
#if defined(OH_THREAD_SANITIZER)
  kinds.clear();  // GpuPutsBetweenHosts covers the threads
#endif
  std::erase_if(kinds, [](const LinkKind& kind) {
    return !kSanitized && (kind.name == "malloc_ucx_tcp" || kind.name == "async_ucx_tcp");
  });
  return kinds;
}

constexpr auto name = [](const auto& test) { return test.param.name; };
INSTANTIATE_TEST_SUITE_P(GpuBetweenHosts, Conformance,
                         ::testing::ValuesIn(whole_between_hosts_kinds()), name);
INSTANTIATE_TEST_SUITE_P(GpuBetweenHosts, Messages, ::testing::ValuesIn(between_hosts_kinds()),
                         name);
INSTANTIATE_TEST_SUITE_P(Gpu, Conformance, ::testing::ValuesIn(gpu_kinds()), name);
INSTANTIATE_TEST_SUITE_P(Gpu, OneSided, ::testing::ValuesIn(gpu_kinds()), name);
INSTANTIATE_TEST_SUITE_P(Gpu, Messages, ::testing::ValuesIn(gpu_kinds()), name);

}  // namespace
}  // namespace conformance::gpu
