// SPDX-License-Identifier: Apache-2.0
#include "device/locate.h"

#include <sched.h>

#include <utility>

#include "memory/shared_heap.h"

namespace oh {
namespace {

// An event for the caller's stream, or the caller's event; empty if the work is done already.
Result<After> after_of(const std::shared_ptr<cuda::Gpu>& gpu, const AfterOption& option, bool ask) {
  if (option.kind == AfterOption::Kind::kNothing) return After();
  if (!gpu) {
    return error(
        OH_ERR_INVALID,
        "an operation of an endpoint for host memory cannot wait for a GPU's stream or event: "
        "create the endpoint with a device");
  }
  if (option.kind == AfterOption::Kind::kStream) {
    OH_ASSIGN_OR_RETURN(cuda::Event event,
                        gpu->event_behind(static_cast<cuda::Stream>(option.handle), ask));
    return After(gpu, event, /*owned=*/true);
  }
  auto event = static_cast<cuda::Event>(option.handle);
  bool complete = false;
  if (ask) {
    OH_ASSIGN_OR_RETURN(complete, gpu->is_complete(event));
  }
  return complete ? After() : After(gpu, event, /*owned=*/false);
}

Result<LocalBuffer> find(const std::shared_ptr<cuda::Gpu>& gpu, const void* data, uint64_t size,
                         const AfterOption& option, const Locate& how) {
  if (!gpu && option.on_device) {
    return error(OH_ERR_INVALID,
                 "the memory is a device's, but the endpoint is for host memory: create the "
                 "endpoint with a device");
  }
  LocalBuffer buffer;
  buffer.data = data;
  buffer.size = size;
  if (!gpu && option.kind == AfterOption::Kind::kNothing) return buffer;
  OH_ASSIGN_OR_RETURN(After after, after_of(gpu, option, how.ask));
  if (!data || size == 0) return buffer;
  // Memory that is exported already costs one driver query, other memory two or more.
  buffer.exported = GpuExports::instance().find_known(gpu->driver(), data, size);
  if (buffer.exported) {
    buffer.near = buffer.exported->for_kernels && buffer.exported->device == gpu->facts().ordinal;
  } else {
    OH_ASSIGN_OR_RETURN(MemoryFacts memory, classify(gpu->driver(), data, size));
    if (memory.placement == Placement::kHost && option.on_device) {
      return error(
          OH_ERR_FAULT,
          "%llu bytes at %p are no device memory any more: they were freed before the call",
          static_cast<unsigned long long>(size), data);
    }
    if (memory.placement == Placement::kHost) {
      buffer.pinned = memory.pinned;
      OH_RETURN_IF_ERROR(wait_for_producer(&after, how.host, "host memory"));
      return buffer;
    }
    buffer.near = memory.placement == Placement::kDevice && memory.device == gpu->facts().ordinal;
  }
  buffer.on_device = true;
  buffer.after = std::move(after);
  if (how.exported) OH_RETURN_IF_ERROR(find_export(*gpu, &buffer));
  return buffer;
}

}  // namespace

Result<LocalBuffer> locate(const std::shared_ptr<cuda::Gpu>& gpu, const void* data, uint64_t size,
                           const AfterOption& after, const Locate& how) {
  Result<LocalBuffer> buffer = find(gpu, data, size, after, how);
  if (buffer.status().code() == OH_ERR_DEVICE) gpu->ask_for_loss();
  return buffer;
}

Status find_export(const cuda::Gpu& gpu, LocalBuffer* buffer) {
  if (!buffer->on_device) return {};
  if (!buffer->exported) {
    OH_ASSIGN_OR_RETURN(buffer->exported,
                        GpuExports::instance().find(gpu.driver(), buffer->data, buffer->size));
  }
  return check_device(gpu, *buffer->exported);
}

Status check_device(const cuda::Gpu& gpu, const GpuExport& exported) {
  if (exported.device == gpu.facts().ordinal || exported.plain()) return {};
  return error(
      OH_ERR_NOT_VIABLE,
      "the memory is on cuda:%d and not from cudaMalloc, the endpoint is on cuda:%d: use an "
      "endpoint on the memory's device",
      exported.device, gpu.facts().ordinal);
}

bool kernels_reach(cuda::Gpu& gpu, uint64_t base, uint64_t length) {
  const auto* data = reinterpret_cast<const void*>(base);
  Result<MemoryFacts> facts = classify(gpu.driver(), data, length);
  if (!facts.ok() || facts->placement != Placement::kDevice) return false;
  Result<std::shared_ptr<const GpuExport>> exported =
      GpuExports::instance().find(gpu.driver(), data, length);
  if (!exported.ok()) return false;
  return facts->device == gpu.facts().ordinal || ((*exported)->plain() && gpu.reach(facts->device));
}

namespace {

// A registration by another GPU ends with that GPU's context: not for kernels of this one.
PinnedView view_of(const cuda::Gpu& gpu, std::shared_ptr<cuda::Pinned> registration,
                   std::shared_ptr<void> memory, const void* data) {
  const bool ours = registration && &registration->gpu() == &gpu;
  const uint64_t shift = ours ? registration->device(data) - reinterpret_cast<uint64_t>(data) : 0;
  return {ours, shift, std::move(memory), std::move(registration)};
}

}  // namespace

PinnedView view_pinned(const std::shared_ptr<cuda::Gpu>& gpu,
                       const std::shared_ptr<ImportedBlock>& block) {
  return view_of(*gpu, block->pin(gpu), block, block->local_base);
}

PinnedView view_pinned(const std::shared_ptr<cuda::Gpu>& gpu, const void* data, uint64_t size,
                       bool ask) {
  if (std::shared_ptr<SharedBlock> block = SharedHeap::instance().find(data, size)) {
    std::shared_ptr<cuda::Pinned> registration = block->pin(gpu);
    if (registration) return view_of(*gpu, std::move(registration), std::move(block), data);
  }
  if (!ask) return {};
  Result<MemoryFacts> facts = classify(gpu->driver(), data, size);
  if (!facts.ok() || !facts->pinned) return {};
  Result<cuda::DevicePtr> there = gpu->device_address(data);
  return there.ok() ? PinnedView{true, *there - reinterpret_cast<uint64_t>(data)} : PinnedView();
}

Status wait_for_pending(After* after, Deadline deadline, const char* what) {
  while (after->pending()) {
    OH_ASSIGN_OR_RETURN(bool complete, after->is_complete());
    if (complete) {
      after->reset();
      return {};
    }
    if (deadline.cancelled()) {
      return error(OH_ERR_CLOSED,
                   "the endpoint was closed while earlier work on %s (after=) was waited for",
                   what);
    }
    if (deadline.passed()) {
      return timed_out(deadline.length(),
                       "earlier work on %s (after=) has not ended; if it is only long, give a "
                       "longer timeout (ONEHOP_TIMEOUT, where the call has none)",
                       what);
    }
    sched_yield();
  }
  return {};
}

}  // namespace oh
