// SPDX-License-Identifier: Apache-2.0
#include "conformance/device_memory.h"

#include <dlfcn.h>
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <vector>

#include "fake_cuda/control.h"
#include "platform/cuda/abi.h"

namespace oh::cuda {
namespace {
// All entry points, including those only used by tests.
struct TestDriver {
#define CONFORMANCE_MEMBER(name, symbol, parameters) Code(*name) parameters = nullptr;
  OH_CUDA_FUNCTIONS(CONFORMANCE_MEMBER)
  OH_CUDA_TEST_FUNCTIONS(CONFORMANCE_MEMBER)
#undef CONFORMANCE_MEMBER
};
}  // namespace
}  // namespace oh::cuda

namespace conformance {
namespace {

namespace cuda = oh::cuda;

cuda::TestDriver g_driver;

struct Device {
  cuda::Device ordinal = 0;
  cuda::Context context = nullptr;
};
Device g_first;  // for threads that a test starts itself
thread_local Device t_device;
const Device& device() { return t_device.context ? t_device : g_first; }

struct Chunk {
  cuda::AllocationHandle handle;
  size_t size;
};
std::mutex g_mutex;
std::map<void*, std::vector<Chunk>> g_chunks;  // VMM memory
std::map<void*, cuda::MemoryPool> g_pools;     // pool memory
constexpr size_t kInset = 1024 + 16;           // offset of kInside
constexpr size_t kChunk = 2 * 1024 * 1024;

void expect(cuda::Code code, const char* what) {
  if (code == cuda::kSuccess) return;
  std::fprintf(stderr, "%s failed with CUDA error %d\n", what, code);
  std::abort();
}
#define CALL(name, ...) expect(g_driver.name(__VA_ARGS__), #name)

// Makes the context of the tests' device current, on any thread.
class Current {
 public:
  Current() { CALL(context_push, device().context); }
  ~Current() {
    cuda::Context former;
    g_driver.context_pop(&former);
  }
};

size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

cuda::AllocationProp vmm_properties() {
  cuda::AllocationProp prop{};
  prop.type = cuda::kAllocationPinned;
  prop.requested_handle_types = cuda::kHandleTypePosixFd;
  prop.location = {cuda::kLocationDevice, device().ordinal};
  return prop;
}

// Chunks of 2 MiB, and a larger last one.
void* allocate_vmm(size_t size) {
  size_t whole = round_up(size, kChunk);
  cuda::DevicePtr base = 0;
  CALL(vmm_reserve, &base, whole, 0, 0, 0);
  std::vector<Chunk> chunks;
  cuda::AllocationProp prop = vmm_properties();
  for (size_t at = 0; at < whole;) {
    size_t length = chunks.size() < 3 ? kChunk : whole - at;
    cuda::AllocationHandle handle = 0;
    CALL(vmm_create, &handle, length, &prop, 0);
    CALL(vmm_map, base + at, length, 0, handle, 0);
    chunks.push_back({handle, length});
    at += length;
  }
  cuda::AccessDesc access{{cuda::kLocationDevice, device().ordinal}, cuda::kAccessReadWrite};
  CALL(vmm_set_access, base, whole, &access, 1);
  void* data = reinterpret_cast<void*>(base);
  std::lock_guard lock(g_mutex);
  g_chunks[data] = std::move(chunks);
  return data;
}

void release_vmm(void* data) {
  auto base = reinterpret_cast<cuda::DevicePtr>(data);
  std::vector<Chunk> chunks;
  {
    std::lock_guard lock(g_mutex);
    chunks = std::move(g_chunks[data]);
    g_chunks.erase(data);
  }
  size_t whole = 0;
  for (const Chunk& chunk : chunks) whole += chunk.size;
  CALL(vmm_unmap, base, whole);
  for (const Chunk& chunk : chunks) CALL(vmm_release, chunk.handle);
  CALL(vmm_unreserve, base, whole);
}

void* allocate_from_pool(size_t size) {
  cuda::PoolProps props{};
  props.type = cuda::kAllocationPinned;
  props.handle_types = cuda::kHandleTypePosixFd;
  props.location = {cuda::kLocationDevice, device().ordinal};
  cuda::MemoryPool pool = nullptr;
  CALL(pool_create, &pool, &props);
  cuda::DevicePtr data = 0;
  CALL(alloc_from_pool_async, &data, size, pool, nullptr);
  CALL(stream_synchronize, nullptr);
  std::lock_guard lock(g_mutex);
  g_pools[reinterpret_cast<void*>(data)] = pool;
  return reinterpret_cast<void*>(data);
}

void load(const std::string& library) {
  void* handle = dlopen(library.empty() ? "libcuda.so.1" : library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    std::fprintf(stderr, "%s\n", dlerror());
    std::abort();
  }
#define CONFORMANCE_LOAD(name, symbol, parameters)                                   \
  g_driver.name = reinterpret_cast<decltype(g_driver.name)>(dlsym(handle, #symbol)); \
  if (!g_driver.name) expect(cuda::kNotFound, #symbol);
  OH_CUDA_FUNCTIONS(CONFORMANCE_LOAD)
  OH_CUDA_TEST_FUNCTIONS(CONFORMANCE_LOAD)
#undef CONFORMANCE_LOAD
  CALL(init, 0);
}

}  // namespace

int use_device(const std::string& library, int ordinal) {
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  if (!g_first.context) load(library);
  int count = 0;
  CALL(device_count, &count);
  if (t_device.context && t_device.ordinal == ordinal % count) return t_device.ordinal;
  t_device.ordinal = ordinal % count;
  CALL(primary_retain, &t_device.context, t_device.ordinal);
  if (!g_first.context) g_first = t_device;
  return t_device.ordinal;
}

void* allocate(MemoryKind kind, size_t size) {
  Current current;
  if (size == 0) size = 1;
  cuda::DevicePtr data = 0;
  switch (kind) {
    case MemoryKind::kPrivate:
    case MemoryKind::kShared:
      return nullptr;
    case MemoryKind::kMalloc:
      CALL(memory_alloc, &data, size);
      break;
    case MemoryKind::kInside:
      CALL(memory_alloc, &data, size + 2 * kInset);
      data += kInset;
      break;
    case MemoryKind::kVmm:
      return allocate_vmm(size);
    case MemoryKind::kPool:
      return allocate_from_pool(size);
    case MemoryKind::kAsync:
      CALL(alloc_async, &data, size, nullptr);
      CALL(stream_synchronize, nullptr);
      break;
    case MemoryKind::kManaged:
      CALL(memory_alloc_managed, &data, size, 1);
      break;
    case MemoryKind::kPinned: {
      void* host = nullptr;
      CALL(host_alloc, &host, size, cuda::kHostRegisterPortable);
      return host;
    }
  }
  return reinterpret_cast<void*>(data);
}

void release(MemoryKind kind, void* data, size_t size) {
  Current current;
  auto address = reinterpret_cast<cuda::DevicePtr>(data);
  static_cast<void>(size);
  switch (kind) {
    case MemoryKind::kPrivate:
    case MemoryKind::kShared:
      return;
    case MemoryKind::kMalloc:
    case MemoryKind::kManaged:
      CALL(memory_free, address);
      return;
    case MemoryKind::kInside:
      CALL(memory_free, address - kInset);
      return;
    case MemoryKind::kVmm:
      return release_vmm(data);
    case MemoryKind::kPool: {
      CALL(free_async, address, nullptr);
      CALL(stream_synchronize, nullptr);
      std::lock_guard lock(g_mutex);
      CALL(pool_destroy, g_pools[data]);
      g_pools.erase(data);
      return;
    }
    case MemoryKind::kAsync:
      CALL(free_async, address, nullptr);
      CALL(stream_synchronize, nullptr);
      return;
    case MemoryKind::kPinned:
      CALL(host_free, data);
      return;
  }
}

void write_device(void* to, const void* from, size_t size) {
  Current current;
  if (size) {
    CALL(memcpy_sync, reinterpret_cast<cuda::DevicePtr>(to),
         reinterpret_cast<cuda::DevicePtr>(from), size);
    // From pageable memory the call may return before the bytes have arrived.
    CALL(stream_synchronize, nullptr);
  }
}

void read_device(void* to, const void* from, size_t size) { write_device(to, from, size); }

size_t free_device_memory() {
  Current current;
  size_t free = 0;
  size_t total = 0;
  CALL(memory_info, &free, &total);
  return free;
}

void* make_stream() {
  Current current;
  cuda::Stream stream = nullptr;
  CALL(stream_create, &stream, cuda::kStreamNonBlocking);
  return stream;
}

void synchronize_stream(void* stream) {
  Current current;
  CALL(stream_synchronize, static_cast<cuda::Stream>(stream));
}

void destroy_stream_under_way(void* stream) {
  Current current;
  CALL(stream_destroy, static_cast<cuda::Stream>(stream));
}

void destroy_stream(void* stream) {
  synchronize_stream(stream);
  Current current;
  CALL(stream_destroy, static_cast<cuda::Stream>(stream));
}

void* make_event() {
  Current current;
  cuda::Event event = nullptr;
  CALL(event_create, &event, cuda::kEventDisableTiming);
  return event;
}

void record_event(void* event, void* stream) {
  Current current;
  CALL(event_record, static_cast<cuda::Event>(event), static_cast<cuda::Stream>(stream));
}

void destroy_event(void* event) {
  Current current;
  CALL(event_destroy, static_cast<cuda::Event>(event));
}

void copy_on(void* stream, void* to, const void* from, size_t size) {
  Current current;
  CALL(memcpy_async, reinterpret_cast<cuda::DevicePtr>(to), reinterpret_cast<cuda::DevicePtr>(from),
       size, static_cast<cuda::Stream>(stream));
}

void block_stream(void* stream, std::atomic<bool>* go) {
  Current current;
  auto wait = [](void* word) {
    while (!static_cast<std::atomic<bool>*>(word)->load()) sched_yield();
  };
  CALL(launch_host_func, static_cast<cuda::Stream>(stream), wait, go);
}

namespace {
// An empty kernel. The fake driver has a kernel of this name, and ignores the image.
constexpr char kKernel[] = R"(
.version 7.5
.target sm_75
.address_size 64
.visible .entry fake_spin(.param .align 8 .b8 arguments[24]) { ret; }
)";
}  // namespace

void launch_first_kernel() {
  Current current;
  cuda::Module module = nullptr;
  cuda::Function function = nullptr;
  CALL(module_load, &module, kKernel);
  CALL(module_function, &function, module, "fake_spin");
  auto* word = static_cast<uint64_t*>(allocate(MemoryKind::kMalloc, 8));
  const uint64_t go = 1;
  write_device(word, &go, sizeof(go));
  FakeCudaSpin argument{reinterpret_cast<uint64_t>(word), 0, 0};
  void* arguments[] = {&argument};
  cuda::Stream stream = nullptr;
  CALL(stream_create, &stream, cuda::kStreamNonBlocking);
  CALL(launch_kernel, function, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr);
  CALL(stream_synchronize, stream);
  CALL(stream_destroy, stream);
  release(MemoryKind::kMalloc, word, 8);
  CALL(module_unload, module);
}

void synchronize_device() {
  Current current;
  CALL(context_synchronize);
}

namespace {
cuda::Graph capture(cuda::Stream stream, const std::function<void()>& work) {
  cuda::Graph graph = nullptr;
  CALL(capture_begin, stream, cuda::kCaptureThreadLocal);
  work();
  CALL(capture_end, stream, &graph);
  return graph;
}
}  // namespace

void capture_copy(void* to, const void* from, size_t size) {
  Current current;
  cuda::Stream stream = nullptr;
  CALL(stream_create, &stream, cuda::kStreamNonBlocking);
  CALL(graph_destroy, capture(stream, [&] { copy_on(stream, to, from, size); }));
  CALL(stream_destroy, stream);
}

void* capture_graph(void* stream, const std::function<void()>& work) {
  Current current;
  cuda::Graph graph = capture(static_cast<cuda::Stream>(stream), work);
  cuda::GraphExec exec = nullptr;
  CALL(graph_instantiate, &exec, graph, 0);
  CALL(graph_destroy, graph);
  return exec;
}

void launch_graph(void* graph, void* stream) {
  Current current;
  CALL(graph_launch, static_cast<cuda::GraphExec>(graph), static_cast<cuda::Stream>(stream));
}

void destroy_graph(void* graph) {
  Current current;
  CALL(graph_exec_destroy, static_cast<cuda::GraphExec>(graph));
}

}  // namespace conformance
