// SPDX-License-Identifier: Apache-2.0
//
// Kernels: the library's own, compiled for the host from the sources of the device's. Images are
// not looked at. A kernel runs on its stream's worker, one of its workers after the other.
//
// Threading: any thread.
#include "kernels/batch.h"

#include <algorithm>
#include <cstring>

#include "streams.h"

namespace oh::cuda {
namespace fake {
namespace {

// What a kernel of the context may touch, as the host addresses it.
bool pieces_of(const ContextState& context, uint64_t address, uint64_t size,
               std::vector<Piece>* out) {
  World& world = World::instance();
  std::lock_guard<std::mutex> lock(world.mutex);
  const Range* range = world.find(address);
  // A copy finds its way between devices; a kernel needs the peer's memory to be mapped for it.
  const bool mapped =
      range != nullptr && (range->kind != Kind::kDevice || range->ordinal == context.ordinal ||
                           context.peers.count(range->ordinal) != 0);
  return mapped && world.resolve(address, size, context, out);
}

bool copy(const ContextState& context, uint64_t to, uint64_t from, uint64_t size) {
  std::vector<Piece> target;
  std::vector<Piece> source;
  if (!pieces_of(context, to, size, &target) || !pieces_of(context, from, size, &source)) {
    return false;
  }
  size_t t = 0;
  size_t s = 0;
  while (size > 0) {
    Piece& into = target[t];
    Piece& out_of = source[s];
    const size_t take = std::min(into.size, out_of.size);
    kernels::copy_together(kernels::OneLane(), reinterpret_cast<uint8_t*>(into.bytes),
                           reinterpret_cast<const uint8_t*>(out_of.bytes), take);
    for (Piece* piece : {&into, &out_of}) {
      piece->bytes += take;
      piece->size -= take;
    }
    if (into.size == 0) ++t;
    if (out_of.size == 0) ++s;
    size -= take;
  }
  return true;
}

Code run_batch(const ContextState& context, const void* argument) {
  kernels::BatchArgs args;
  memcpy(&args, argument, sizeof(args));
  std::vector<Piece> shares;
  std::vector<Piece> blocks;
  if (!pieces_of(context, reinterpret_cast<uint64_t>(args.shares),
                 (args.workers + 1) * sizeof(kernels::BatchShare), &shares)) {
    return kIllegalAddress;
  }
  args.shares = reinterpret_cast<const kernels::BatchShare*>(shares[0].bytes);
  const uint64_t count = args.shares[args.workers].block;
  if (!pieces_of(context, reinterpret_cast<uint64_t>(args.blocks),
                 count * sizeof(kernels::BatchBlock), &blocks)) {
    return kIllegalAddress;
  }
  args.blocks = reinterpret_cast<const kernels::BatchBlock*>(blocks[0].bytes);
  bool good = true;
  for (uint32_t worker = 0; worker < args.workers; ++worker) {
    kernels::walk_share(args, worker, [&](uint64_t to, uint64_t from, uint64_t size) {
      good = good && copy(context, to, from, size);
    });
  }
  std::vector<Piece> finished;
  std::vector<Piece> word;
  good =
      good &&
      pieces_of(context, reinterpret_cast<uint64_t>(args.finished), sizeof(uint32_t), &finished) &&
      pieces_of(context, reinterpret_cast<uint64_t>(args.word), sizeof(uint64_t), &word);
  if (!good) return kIllegalAddress;
  uint32_t before = 0;
  memcpy(&before, finished[0].bytes, sizeof(before));
  if (before != 0) return kLaunchFailed;  // nobody zeroed it
  // Release: who reads the word with acquire sees the copies before it.
  __atomic_store_n(reinterpret_cast<uint64_t*>(word[0].bytes), args.value, __ATOMIC_RELEASE);
  return kSuccess;
}

}  // namespace

struct Kernel {
  const char* name;
  size_t argument;  // bytes of the only one
  Code (*run)(const ContextState& context, const void* argument);
};

namespace {
constexpr Kernel kKernels[] = {{kernels::kBatchKernel, sizeof(kernels::BatchArgs), run_batch}};
}  // namespace
}  // namespace fake

using namespace fake;

Code cuModuleLoadData(Module* out, const void* image) {
  Call call(Symbol::cuModuleLoadData, kContext);
  if (!call.ok()) return call.code();
  if (image == nullptr) return kInvalidValue;
  *out = call.world().new_handle<Module>();
  call.world().modules.insert(*out);
  return kSuccess;
}

Code cuModuleUnload(Module module) {
  Call call(Symbol::cuModuleUnload, kContext);
  if (!call.ok()) return call.code();
  return call.world().modules.erase(module) == 1 ? kSuccess : kInvalidHandle;
}

Code cuModuleGetFunction(Function* out, Module module, const char* name) {
  Call call(Symbol::cuModuleGetFunction, kContext);
  if (!call.ok()) return call.code();
  if (call.world().modules.count(module) == 0) return kInvalidHandle;
  for (const Kernel& kernel : kKernels) {
    if (strcmp(kernel.name, name) != 0) continue;
    *out = reinterpret_cast<Function>(const_cast<Kernel*>(&kernel));
    return kSuccess;
  }
  return kNotFound;
}

Code cuLaunchKernel(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                    unsigned block_x, unsigned block_y, unsigned block_z, unsigned, Stream handle,
                    void** arguments, void** extra) {
  Call call(Symbol::cuLaunchKernel, kContext);
  if (!call.ok()) return call.code();
  std::shared_ptr<StreamState> stream;
  const Code code = call.find(handle, &stream);
  if (code != kSuccess) return code;
  const bool sizes = grid_x * grid_y * grid_z > 0 && block_x * block_y * block_z > 0 &&
                     block_x * block_y * block_z <= 1024;
  if (function == nullptr || !sizes || extra != nullptr) return kInvalidValue;
  const auto* kernel = reinterpret_cast<const Kernel*>(function);
  // Arguments are read when the kernel is launched.
  const auto* bytes = static_cast<const char*>(arguments[0]);
  std::vector<char> argument(bytes, bytes + kernel->argument);
  submit(call.world(), stream,
         {[kernel, argument, context = stream->context] {
            return kernel->run(*context, argument.data());
          },
          true});
  return kSuccess;
}

}  // namespace oh::cuda
