// SPDX-License-Identifier: Apache-2.0
//
// Modules, their functions, and launches. Images are ignored. The first launch of a function loads
// it, which waits for running kernels.
//
// Threading: any thread.
#include <cstring>

#include "kernels.h"
#include "streams.h"

namespace oh::cuda {
namespace fake {
namespace {

constexpr size_t kMostBytes = 32764;    // per kernel argument, as on devices
constexpr int kFirstWithClusters = 90;  // code that waits for clusters and earlier kernels
const Kernel* const kKernels[] = {&kBatch, &kStreamBatch, &kStreamFewBlocks, &kWorker,
                                  &kSpin,  &kStream,      &kStreamLarge,     &kStreamFew,
                                  &kLanes, &kStreamMany,  &kProxy,           &kAtomic};

// Returns the kernel of a loaded function. May release the lock.
Code load(Call& call, Function function, const Kernel** out) {
  auto& functions = call.world().functions;
  const auto found = functions.find(function);
  if (found == functions.end()) return kInvalidHandle;
  *out = found->second.kernel;
  if (found->second.is_loaded) return kSuccess;
  const Code code = call.wait_to_load(call.context());
  if (code != kSuccess) return code;
  const auto still = functions.find(function);
  if (still == functions.end()) return kInvalidHandle;
  still->second.is_loaded = true;
  return kSuccess;
}

bool divides(unsigned part, unsigned whole) { return part > 0 && whole % part == 0; }

bool is_valid(const LaunchAttribute& attribute, const LaunchConfig& config) {
  const LaunchAttributeValue& value = attribute.value;
  switch (attribute.id) {
    case kLaunchCluster:
      return fake::config().code >= kFirstWithClusters && divides(value.cluster.x, config.grid_x) &&
             divides(value.cluster.y, config.grid_y) && divides(value.cluster.z, config.grid_z);
    case kLaunchProgrammaticSerialization:
      return fake::config().code >= kFirstWithClusters;
    case kLaunchMemSyncDomain:
      return value.mem_sync_domain == kMemSyncDomainDefault ||
             value.mem_sync_domain == kMemSyncDomainRemote;
    default:
      return false;
  }
}

Grid grid_of(const LaunchConfig& config) {
  Grid grid{config.grid_x * config.grid_y * config.grid_z,
            config.block_x * config.block_y * config.block_z, 1};
  for (unsigned i = 0; i < config.attribute_count; ++i) {
    const LaunchAttribute& attribute = config.attributes[i];
    if (attribute.id != kLaunchCluster) continue;
    const auto& size = attribute.value.cluster;
    grid.cluster = size.x * size.y * size.z;
  }
  return grid;
}

bool is_valid(const LaunchConfig& config, const Grid& grid) {
  if (grid.blocks == 0 || grid.threads == 0 || grid.threads > kMostThreads) return false;
  for (unsigned i = 0; i < config.attribute_count; ++i) {
    if (!is_valid(config.attributes[i], config)) return false;
  }
  return true;
}

Code launch(Call& call, const LaunchConfig& config, Function function, void** arguments) {
  const Grid grid = grid_of(config);
  if (!is_valid(config, grid)) return kInvalidValue;
  const Kernel* kernel = nullptr;
  Code code = load(call, function, &kernel);
  if (code != kSuccess) return code;
  if (kernel->argument > kMostBytes || grid.threads > kernel->threads) return kInvalidValue;
  std::shared_ptr<StreamState> stream;
  code = call.find(config.stream, &stream);
  if (code != kSuccess) return code;
  const auto* bytes = static_cast<const char*>(arguments[0]);
  std::vector<char> argument(bytes, bytes + kernel->argument);
  Operation operation;
  operation.work = [kernel, grid, argument = std::move(argument), context = stream->context] {
    return kernel->run(*context, grid, argument.data());
  };
  operation.is_copy = kernel->is_copy;
  operation.is_kernel = true;
  call.world().blocks[kernel->name] = grid.blocks;
  return submit(call.world(), stream, std::move(operation));
}

}  // namespace

bool pieces_of(const ContextState& context, uint64_t address, uint64_t size,
               std::vector<Piece>* out) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  const Range* range = world.find(address);
  // A copy crosses devices by itself; a kernel needs the peer's memory mapped for its context.
  const bool is_mapped =
      range != nullptr && (range->kind != Kind::kDevice || range->ordinal == context.ordinal ||
                           context.peers.count(range->ordinal) != 0);
  return is_mapped && world.resolve(address, size, context, out);
}

bool lacks_atomics(const ContextState& context, uint64_t address) {
  if (config().atomics) return false;
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  const Range* range = world.find(address);
  return range != nullptr && range->backing != nullptr &&
         range->backing->facts().physical != context.physical;
}

}  // namespace fake

using namespace fake;

Code cuModuleLoadData(Module* out, const void* image) {
  Call call(Symbol::cuModuleLoadData, kContext);
  if (!call.ok()) return call.code();
  if (image == nullptr) return kInvalidValue;
  const Code code = call.wait_for_kernels(call.context());
  if (code != kSuccess) return code;
  *out = call.world().new_handle<Module>();
  call.world().modules.insert(*out);
  return kSuccess;
}

Code cuModuleUnload(Module module) {
  Call call(Symbol::cuModuleUnload, kContext);
  if (!call.ok()) return call.code();
  if (call.world().modules.count(module) == 0) return kInvalidHandle;
  const Code code = call.wait_for_kernels(call.context());
  if (code != kSuccess) return code;
  std::erase_if(call.world().functions, [&](const auto& one) { return one.second.of == module; });
  return call.world().modules.erase(module) == 1 ? kSuccess : kInvalidHandle;
}

Code cuModuleGetFunction(Function* out, Module module, const char* name) {
  Call call(Symbol::cuModuleGetFunction, kContext);
  if (!call.ok()) return call.code();
  if (call.world().modules.count(module) == 0) return kInvalidHandle;
  auto& functions = call.world().functions;
  for (const auto& [handle, function] : functions) {
    if (function.of != module || strcmp(function.kernel->name, name) != 0) continue;
    *out = handle;
    return kSuccess;
  }
  for (const Kernel* kernel : kKernels) {
    if (strcmp(kernel->name, name) != 0) continue;
    *out = call.world().new_handle<Function>();
    functions.emplace(*out, FunctionState{kernel, module});
    return kSuccess;
  }
  return kNotFound;
}

Code cuFuncGetAttribute(int* value, int attribute, Function function) {
  Call call(Symbol::cuFuncGetAttribute, kContext);
  if (!call.ok()) return call.code();
  if (call.world().functions.count(function) == 0) return kInvalidHandle;
  switch (attribute) {
    case kFunctionMostThreads:
      *value = static_cast<int>(kMostThreads);
      return kSuccess;
    case kFunctionVirtualArchitecture:
      *value = fake::config().code;
      return kSuccess;
    default:
      return kInvalidValue;
  }
}

Code cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                    Stream stream, void** arguments, void** extra) {
  Call call(Symbol::cuLaunchKernel, kContext);
  if (!call.ok()) return call.code();
  if (extra != nullptr) return kInvalidValue;
  const LaunchConfig config{grid_x,  grid_y,       grid_z, block_x, block_y,
                            block_z, shared_bytes, stream, nullptr, 0};
  return launch(call, config, function, arguments);
}

Code cuLaunchKernelEx(const LaunchConfig* config, Function function, void** arguments,
                      void** extra) {
  Call call(Symbol::cuLaunchKernelEx, kContext);
  if (!call.ok()) return call.code();
  if (config == nullptr || extra != nullptr) return kInvalidValue;
  return launch(call, *config, function, arguments);
}

}  // namespace oh::cuda
