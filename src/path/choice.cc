// SPDX-License-Identifier: Apache-2.0
#include "path/choice.h"

#include "base/status.h"
#include "path/message_selection.h"

namespace oh {

const char* memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kShared:
      return "shared";
    case MemoryKind::kPinned:
      return "pinned";
    case MemoryKind::kDevice:
      return "device";
    case MemoryKind::kDevicePrivate:
      return "device-private";
  }
  return "unknown";
}

const char* method_name(Method method) {
  switch (method) {
    case Method::kInline:
      return "inline";
    case Method::kEager:
      return "eager";
    case Method::kDirect:
      return "direct";
    case Method::kStream:
      return "stream";
    case Method::kNone:
      return "none";
  }
  return "unknown";
}

oh_path bulk_path(const LinkFacts& facts) {
  if (facts.ucx) return OH_PATH_UCX;
  if (!facts.segment) return OH_PATH_SOCKET;
  return facts.same_process ? OH_PATH_LOCAL : OH_PATH_SHM;
}

std::string between_hosts(const LinkFacts& facts) {
  std::string why = facts.ucx ? "over UCX, from buffer to buffer" : "on the control socket";
  if (!facts.why_no_segment.empty()) why += "; no shared memory: " + facts.why_no_segment;
  if (facts.ucx) return why;
  return facts.why_no_ucx.empty() ? why : why + "; no UCX: " + facts.why_no_ucx;
}

std::string why_not_at_all(const LinkFacts& facts, bool ours) {
  return ours && facts.segment ? facts.why_no_device : std::string();
}

Choice by_staging(const LinkFacts& facts) {
  return {bulk_path(facts), Method::kStream,
          "through pinned host memory, chunk by chunk, by an engine at each device; " +
              between_hosts(facts)};
}

// Within one process every engine of a GPU can address that GPU's memory. Engines of other GPUs can
// address it only if it comes from cudaMalloc.
std::string plain_only(const LinkFacts& facts, MemoryKind addressed) {
  if (facts.same_gpu || addressed != MemoryKind::kDevice) return {};
  return " (from cudaMalloc; other memory travels as device-private)";
}

std::string over(const LinkFacts& facts) {
  if (facts.same_gpu) return {};
  if (!facts.why_no_peer_access.empty()) {
    return ", by the driver through host memory: " + facts.why_no_peer_access;
  }
  bool known = facts.gpu_link.kind != OH_LINK_UNKNOWN;
  return known ? ", over " + facts.gpu_link.text() : std::string();
}

Choice through_devices(const LinkFacts& facts, MemoryKind source, MemoryKind target) {
  const MessageSelection selection(facts);
  const bool here = facts.same_process;
  const bool devices = on_device(source) && on_device(target);
  const Route route = selection.device_route(source, target, /*pending=*/false);
  if (!devices && (route == Route::kSourceEngine || route == Route::kTargetEngine)) {
    const bool shared = source == MemoryKind::kShared || target == MemoryKind::kShared;
    return {selection.engine_path(), Method::kDirect,
            shared ? "one copy by the engine of the side with the device, which maps the block"
                   : "one copy by the engine of the side with the pinned memory, which maps the "
                     "device memory"};
  }
  switch (route) {
    case Route::kSourceEngine:
      return {
          selection.engine_path(), Method::kDirect,
          std::string("one copy by the source's engine ") +
              (here ? "to a plain address" + plain_only(facts, target) : "into the mapped buffer") +
              over(facts)};
    case Route::kTargetEngine:
      return {selection.engine_path(), Method::kDirect,
              std::string("one copy by the target's engine ") +
                  (here ? "from a plain address" + plain_only(facts, source)
                        : "out of the mapped buffer") +
                  over(facts)};
    case Route::kSlab:
      return {OH_PATH_STAGED, Method::kStream,
              std::string("two copies through a slab on the target's GPU, as neither buffer ") +
                  (here ? "is open to other GPUs" : "can be mapped") + over(facts)};
    default:
      break;
  }
  if (devices) {
    return {OH_PATH_RELAY, Method::kStream,
            "through host memory, an engine on each side: " + facts.why_no_peer_access};
  }
  return {OH_PATH_RELAY, Method::kStream,
          std::string("through pinned host memory: ") +
              (on_device(source) ? "an engine fills it, the CPU drains it"
                                 : "the CPU fills it, an engine drains it") +
              "; memory that onehop shares or the application pins takes one copy"};
}

Choice or_by_worker(MemoryKind ours, MemoryKind theirs, const Choice& choice) {
  if (!on_device(ours) || theirs != MemoryKind::kDevice) return choice;
  return {OH_PATH_WORKER, choice.method,
          "by a kernel that stays on our GPU while small copies come often; else " + choice.why};
}

}  // namespace oh
