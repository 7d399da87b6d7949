// SPDX-License-Identifier: Apache-2.0
#include "path/selection.h"

#include <unistd.h>

#include <algorithm>

#include "base/status.h"
#include "link/pair.h"
#include "platform/cuda/driver.h"
#include "platform/os/handles.h"
#include "platform/ucx/library.h"
#include "transport/shm/cma_mover.h"

namespace oh {

const char* memory_kind_name(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kHost:
      return "host";
    case MemoryKind::kShared:
      return "shared";
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

namespace {

oh_path bulk_path(const LinkFacts& facts) {
  if (facts.ucx) return OH_PATH_UCX;
  if (!facts.segment) return OH_PATH_SOCKET;
  return facts.same_process ? OH_PATH_LOCAL : OH_PATH_SHM;
}

// Without a segment.
std::string between_hosts(const LinkFacts& facts) {
  if (facts.ucx) return "over UCX, from buffer to buffer";
  std::string why = "on the control socket: " + facts.why_no_segment;
  return facts.why_no_ucx.empty() ? why : why + "; no UCX: " + facts.why_no_ucx;
}

std::string how_direct(const LinkFacts& facts, bool shared) {
  if (facts.same_process) return "one copy by plain addresses, both sides copying";
  return shared ? "one copy through the mapped block, both sides copying"
                : "one copy by process_vm_readv/writev, both sides copying; through the ring while "
                  "both sides wait";
}

bool on_device(MemoryKind kind) {
  return kind == MemoryKind::kDevice || kind == MemoryKind::kDevicePrivate;
}

// Why device memory on this link travels nowhere; `ours`: our buffer is on a device.
std::string why_not_at_all(const LinkFacts& facts, bool ours) {
  return ours && facts.segment ? facts.why_no_device : std::string();
}

// Device memory without a segment.
Choice by_crossings(const LinkFacts& facts) {
  return {bulk_path(facts), Method::kStream,
          "through pinned host memory, chunk by chunk, by an engine at each device; " +
              between_hosts(facts)};
}

// Within the process addresses are good for every engine of their own GPU, and for those of others
// if the memory is from cudaMalloc.
std::string plain_only(const LinkFacts& facts, MemoryKind addressed) {
  if (facts.same_gpu || addressed != MemoryKind::kDevice) return {};
  return " (from cudaMalloc; other memory travels as device-private)";
}

// What a copy between the two GPUs leads over. It changes the words only: sizes and choices were
// measured over NVLink, and nothing says that others would be better over PCIe.
std::string over(const LinkFacts& facts) {
  if (facts.same_gpu) return {};
  if (!facts.why_no_peer_access.empty()) {
    return ", by the driver through host memory: " + facts.why_no_peer_access;
  }
  bool known = facts.gpu_link.kind != OH_LINK_UNKNOWN;
  return known ? ", over " + facts.gpu_link.text() : std::string();
}

Choice between_devices_here(const LinkFacts& facts, MemoryKind source, MemoryKind target) {
  if (facts.same_gpu || target == MemoryKind::kDevice) {
    return {OH_PATH_LOCAL, Method::kDirect,
            "one copy by the source's engine to a plain address" + plain_only(facts, target) +
                over(facts)};
  }
  if (source == MemoryKind::kDevice) {
    return {OH_PATH_LOCAL, Method::kDirect,
            "one copy by the target's engine from a plain address" + plain_only(facts, source) +
                over(facts)};
  }
  return {OH_PATH_STAGED, Method::kStream,
          "two copies through a slab on the target's GPU, as neither buffer is open to other GPUs" +
              over(facts)};
}

Choice between_devices(const LinkFacts& facts, MemoryKind source, MemoryKind target) {
  if (facts.same_process) return between_devices_here(facts, source, target);
  if (!facts.why_no_peer_access.empty()) {
    return {OH_PATH_RELAY, Method::kStream,
            "through host memory, an engine on each side: " + facts.why_no_peer_access};
  }
  if (target == MemoryKind::kDevice) {
    return {OH_PATH_CUDA_IPC, Method::kDirect,
            "one copy by the source's engine into the mapped buffer" + over(facts)};
  }
  if (source == MemoryKind::kDevice) {
    return {OH_PATH_CUDA_IPC, Method::kDirect,
            "one copy by the target's engine out of the mapped buffer" + over(facts)};
  }
  return {OH_PATH_STAGED, Method::kStream,
          "two copies through a slab on the target's GPU, as neither buffer can be mapped" +
              over(facts)};
}

// A device's bytes from or to the host, or another device.
Choice through_devices(const LinkFacts& facts, MemoryKind source, MemoryKind target) {
  if (on_device(source) && on_device(target)) return between_devices(facts, source, target);
  return {OH_PATH_RELAY, Method::kStream,
          on_device(source) ? "through pinned host memory: an engine fills it, the CPU drains it"
                            : "through pinned host memory: the CPU fills it, an engine drains it"};
}

// A message of host memory to a device is announced without a slot where none is free.
constexpr const char* kWithoutSlot =
    "; through the ring, then one copy by the receiver's engine, while all slots are in use";

// Small messages use up credit until their receives have them.
constexpr const char* kWithoutCredit = "; without credit as larger ones";

// The largest message that may go before its receive is known, of memory that the CPU reads.
uint64_t largest_early(const LinkFacts& facts) {
  // One that takes more than all the credit never does.
  return std::min(facts.eager_max, facts.eager_credit / eager_charge(1) * eager_charge(1));
}

bool goes_early(const LinkFacts& facts, MemoryKind source, uint64_t size) {
  return !on_device(source) && size <= largest_early(facts);
}

bool by_worker(const LinkFacts& facts, uint64_t size) {
  return facts.worker_max > 0 && size <= facts.worker_max;
}

// What our engine would copy to (or from) memory that our GPU's kernels reach, its worker may.
Choice or_by_worker(MemoryKind ours, MemoryKind theirs, const Choice& choice) {
  if (!on_device(ours) || theirs != MemoryKind::kDevice) return choice;
  return {OH_PATH_WORKER, choice.method,
          "by a kernel that stays on our GPU while small copies come often; else " + choice.why};
}

Choice early_message(const LinkFacts& facts, uint64_t size) {
  if (size <= facts.granted_inline) {
    return {OH_PATH_INLINE, Method::kInline, "inside the control message"};
  }
  return {bulk_path(facts), Method::kEager,
          facts.segment ? "two copies through the ring, overlapping" : between_hosts(facts)};
}

Choice device_message(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size) {
  std::string why_not = why_not_at_all(facts, on_device(source));
  if (!why_not.empty()) return {OH_PATH_NONE, Method::kNone, why_not};
  if (goes_early(facts, source, size)) {
    Choice choice = early_message(facts, size);
    choice.why += ", then one copy by the receiver's engine";
    return choice;
  }
  if (!facts.segment) return by_crossings(facts);
  Choice choice = through_devices(facts, source, target);
  if (!on_device(source)) choice.why += kWithoutSlot;
  bool reached = choice.path == OH_PATH_CUDA_IPC || (facts.same_process && facts.same_gpu);
  return reached && by_worker(facts, size) ? or_by_worker(source, target, choice) : choice;
}

Choice device_one_sided(const LinkFacts& facts, MemoryKind local, MemoryKind remote) {
  std::string why_not = why_not_at_all(facts, on_device(local));
  if (!why_not.empty()) return {OH_PATH_NONE, Method::kNone, why_not};
  if (!facts.segment) {
    Choice choice = by_crossings(facts);
    choice.why += ", with the target's progress";
    return choice;
  }
  std::string way = on_device(local) && on_device(remote) ? over(facts) : std::string();
  // Whether our engine reaches the region by itself.
  if (facts.our_gpu && facts.why_no_device.empty() && remote != MemoryKind::kDevicePrivate) {
    if (facts.same_process) {
      return {OH_PATH_LOCAL, Method::kDirect,
              "one copy by our engine, by plain addresses" + plain_only(facts, remote) + way};
    }
    if (remote == MemoryKind::kDevice && facts.why_no_peer_access.empty()) {
      return {OH_PATH_CUDA_IPC, Method::kDirect,
              "one copy by our engine, the region being mapped" + way};
    }
  }
  Choice choice = through_devices(facts, local, remote);
  choice.why += ", with the target's progress";
  return choice;
}

// One that has bytes, while there is credit.
Choice message_with_bytes(const LinkFacts& facts, MemoryKind source, MemoryKind target,
                          uint64_t size) {
  if (on_device(source) || on_device(target)) return device_message(facts, source, target, size);
  if (goes_early(facts, source, size)) return early_message(facts, size);
  oh_path path = bulk_path(facts);
  bool shared = source == MemoryKind::kShared || target == MemoryKind::kShared;
  if (facts.segment && (shared || facts.we_reach_them || facts.they_reach_us)) {
    return {path, Method::kDirect, how_direct(facts, shared)};
  }
  return {path, Method::kStream,
          facts.segment ? "two copies through the ring: " + facts.why_not_reached
                        : between_hosts(facts)};
}

}  // namespace

Choice choose_message(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size) {
  if (size == 0) return {OH_PATH_INLINE, Method::kInline, "no bytes beside the control message"};
  Choice choice = message_with_bytes(facts, source, target, size);
  if (goes_early(facts, source, size)) choice.why += kWithoutCredit;
  return choice;
}

Choice choose_pending(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size) {
  // The target's engine does not wait for work on our GPU: it reaches our buffer as little as one
  // that cannot be mapped.
  bool closed = size > 0 && source == MemoryKind::kDevice;
  Choice choice = choose_message(facts, closed ? MemoryKind::kDevicePrivate : source, target, size);
  if (choice.path == OH_PATH_STAGED) {
    choice.why =
        "two copies through a slab on the target's GPU, as the target's engine does not wait for "
        "work on ours; like other messages if the receive was posted first" +
        over(facts);
  }
  return choice;
}

Choice choose_one_sided(const LinkFacts& facts, MemoryKind local, MemoryKind remote,
                        uint64_t size) {
  if (size == 0) {
    return {bulk_path(facts), Method::kNone, "no bytes: a notification travels as a message"};
  }
  if (on_device(local) || on_device(remote)) {
    Choice choice = device_one_sided(facts, local, remote);
    bool reached = choice.path == OH_PATH_CUDA_IPC;
    return reached && by_worker(facts, size) ? or_by_worker(local, remote, choice) : choice;
  }
  oh_path path = bulk_path(facts);
  if (facts.rma) {
    return {path, Method::kStream,
            "straight from and to the memory, by UCX's remote memory access, with the target's "
            "watcher where it has no RDMA; as messages until the region's key has come"};
  }
  bool shared = remote == MemoryKind::kShared;
  if (facts.segment && (shared || facts.we_reach_them)) {
    return {path, Method::kDirect,
            facts.same_process ? "one copy by plain addresses"
            : shared           ? "one copy through the mapped block"
                               : "one copy by process_vm_readv/writev"};
  }
  return {path, Method::kStream,
          facts.segment ? "messages, with the target's progress: " + facts.why_not_reached
                        : "messages, with the target's watcher, " + between_hosts(facts)};
}

namespace {

constexpr MemoryKind kAllKinds[] = {MemoryKind::kHost, MemoryKind::kShared, MemoryKind::kDevice,
                                    MemoryKind::kDevicePrivate};

// Whether the pair gets rows of its own.
bool occurs(const LinkFacts& facts, MemoryKind source, MemoryKind target) {
  if ((on_device(source) && !facts.our_gpu) || (on_device(target) && !facts.their_gpu)) {
    return false;
  }
  bool device = on_device(source) || on_device(target);
  return !device || (source != MemoryKind::kShared && target != MemoryKind::kShared);
}

using Choose = Choice (*)(const LinkFacts& facts, MemoryKind source, MemoryKind target,
                          uint64_t size);

// Appends a row for each range of sizes with one choice. The choice changes only behind `lasts`.
void explain_sizes(const LinkFacts& facts, PathRow row, Choose choose, std::vector<uint64_t> lasts,
                   std::vector<PathRow>* rows) {
  lasts.push_back(UINT64_MAX);
  std::sort(lasts.begin(), lasts.end());
  row.first = 0;
  for (size_t i = 0; i < lasts.size(); ++i) {
    row.last = lasts[i];
    if (row.last < row.first) continue;
    row.choice = choose(facts, row.source, row.target, row.last);
    bool same =
        i + 1 < lasts.size() && choose(facts, row.source, row.target, lasts[i + 1]) == row.choice;
    if (same) continue;
    rows->push_back(row);
    row.first = row.last + 1;
  }
}

// Messages and signals in the order of a stream: one way for all sizes.
void explain_streams(const LinkFacts& facts, std::vector<PathRow>* rows) {
  Choice choice{facts.stream_path, Method::kNone, facts.why_stream};
  if (facts.stream_path == OH_PATH_NVLINK) {
    choice = {OH_PATH_NVLINK, Method::kDirect,
              "by kernels that write to each other's memory" + over(facts)};
  } else if (facts.stream_path == OH_PATH_PROXY) {
    choice = {OH_PATH_PROXY, Method::kStream, "through the host: " + facts.why_stream};
  } else if (facts.why_stream.empty()) {
    return;
  }
  rows->push_back({"stream", MemoryKind::kDevice, MemoryKind::kDevice, 0, UINT64_MAX, choice});
}

}  // namespace

std::vector<PathRow> explain(const LinkFacts& facts) {
  std::vector<PathRow> rows;
  for (MemoryKind source : kAllKinds) {
    for (MemoryKind target : kAllKinds) {
      if (!occurs(facts, source, target)) continue;
      explain_sizes(facts, {"message", source, target}, choose_message,
                    {0, std::min(facts.granted_inline, largest_early(facts)), largest_early(facts),
                     facts.worker_max},
                    &rows);
      if (choose_pending(facts, source, target, UINT64_MAX).path ==
          choose_message(facts, source, target, UINT64_MAX).path) {
        continue;
      }
      explain_sizes(facts, {"pending message", source, target}, choose_pending, {0}, &rows);
    }
  }
  for (MemoryKind local : {MemoryKind::kHost, MemoryKind::kDevice, MemoryKind::kDevicePrivate}) {
    for (MemoryKind remote : kAllKinds) {
      if (!occurs(facts, local, remote)) continue;
      explain_sizes(facts, {"put/get", local, remote}, choose_one_sided, {0, facts.worker_max},
                    &rows);
    }
  }
  if (facts.our_gpu && facts.their_gpu) explain_streams(facts, &rows);
  return rows;
}

std::string describe_choice(const LinkFacts& facts) {
  std::string text = strf("host memory by %s", oh_path_name(bulk_path(facts)));
  auto rule_out = [&](const char* faster, const std::string& why) {
    text += strf("; not %s: %s", faster, why.c_str());
  };
  if (!facts.same_process) rule_out("local", "the peer is another process");
  if (!facts.segment) rule_out("shm", facts.why_no_segment);
  if (!facts.segment && !facts.ucx) rule_out("ucx", facts.why_no_ucx);
  if (facts.segment && !facts.we_reach_them) rule_out("in a single copy", facts.why_not_reached);
  if (!facts.our_gpu) return text;
  MemoryKind theirs = facts.their_gpu ? MemoryKind::kDevice : MemoryKind::kHost;
  Choice device = choose_message(facts, MemoryKind::kDevice, theirs, UINT64_MAX);
  return text + strf("; device memory by %s: %s", oh_path_name(device.path), device.why.c_str());
}

std::string why_slower(const LinkFacts& facts) {
  bool could = facts.our_gpu && facts.their_gpu && facts.gpu_link.kind == OH_LINK_NVLINK;
  if (!could || facts.why_no_peer_access.empty()) return {};
  return facts.why_no_peer_access +
         ", so that copies go through host memory, although the two are "
         "joined by " +
         facts.gpu_link.text() +
         ": see what switches peer access off (the driver's "
         "settings, MIG, the virtual machine or container)";
}

std::vector<TransportFact> transports(const std::string& cuda_library,
                                      const std::string& ucx_library) {
  std::vector<TransportFact> all;
  all.push_back({"local", true, "peers of the same process"});
  Result<UniqueFd> memfd = make_memfd("onehop-probe", 4096);
  all.push_back({"shm", memfd.ok(), memfd.ok() ? "peers of this host" : memfd.status().text()});
  // Whether process_vm_readv is there at all; each pair of peers finds out for itself.
  static const uint8_t nonce[kNonceSize] = {1};
  Status cma = CmaMover::probe(getpid(), reinterpret_cast<uint64_t>(nonce), nonce);
  all.push_back(
      {"shm single copy", cma.ok(),
       cma.ok() ? "process_vm_readv works in this process; proved for each pair" : cma.text()});
  all.push_back({"socket", true, "control socket, where there is no shared memory"});
  Result<const cuda::Driver*> driver = cuda::Driver::open(cuda_library);
  auto by_engine = [&](const char* name, const char* why) {
    all.push_back({name, driver.ok(), driver.ok() ? why : driver.status().text()});
  };
  by_engine("cuda_ipc", "copy engines into and out of mapped device memory of peers of this host");
  by_engine("staged", "copy engines through a slab, for device memory that cannot be mapped");
  by_engine("relay", "pinned host memory, between host and device, or GPUs out of reach");
  by_engine("worker",
            "a kernel that stays on the GPU while small copies come often; with ONEHOP_WORKER=1");
  by_engine("nvlink", "kernels into mapped device memory, for streams and kernels");
  by_engine("proxy", "messages for streams, where kernels may not use the link");
  Result<const ucx::Library*> ucx = ucx::Library::open(ucx_library);
  all.push_back({"ucx", ucx.ok(),
                 ucx.ok() ? strf("peers of other hosts, by UCX %s from %s",
                                 (*ucx)->version_text().c_str(), (*ucx)->path.c_str())
                          : ucx.status().text()});
  return all;
}

}  // namespace oh
