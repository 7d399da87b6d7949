// SPDX-License-Identifier: Apache-2.0
#include "path/selection.h"

#include <unistd.h>

#include <algorithm>

#include "base/status.h"
#include "link/link.h"
#include "path/message_selection.h"
#include "platform/cuda/driver.h"
#include "platform/os/handles.h"
#include "platform/ucx/library.h"
#include "transport/shm/cma_mover.h"

namespace oh {

namespace {

constexpr MemoryKind kAllKinds[] = {MemoryKind::kHost, MemoryKind::kShared, MemoryKind::kPinned,
                                    MemoryKind::kDevice, MemoryKind::kDevicePrivate};

std::string how_direct(const LinkFacts& facts, bool shared) {
  if (facts.same_process) return "one copy by plain addresses, both sides copying";
  return shared ? "one copy through the mapped block, both sides copying"
                : "one copy by process_vm_readv/writev, both sides copying; through the ring while "
                  "both sides wait";
}

// A message of host memory to a device is announced without a slot where none is free.
constexpr const char* kWithoutSlot =
    "; through the ring, then one copy by the receiver's engine, while all slots are in use";

// Eager messages hold credit until their receives consume them.
constexpr const char* kWithoutCredit = "; without credit as larger ones";

// The largest eager message of host memory. One that needs more than the whole credit is never
// eager.
uint64_t largest_eager(const LinkFacts& facts) {
  return std::min(facts.eager_max, facts.eager_credit / eager_charge(1) * eager_charge(1));
}

Choice eager_message(const LinkFacts& facts, MemoryKind target, oh_path path) {
  Choice choice = {
      path, Method::kEager,
      facts.segment ? "two copies through the ring, overlapping" : between_hosts(facts)};
  if (path == OH_PATH_INLINE) choice = {path, Method::kInline, "inside the control message"};
  if (on_device(target)) choice.why += ", then one copy by the receiver's engine";
  choice.why += kWithoutCredit;
  return choice;
}

// Why a message between host buffers goes through the channel.
std::string why_framed(const LinkFacts& facts) {
  if (!facts.segment) return between_hosts(facts);
  const bool small = facts.why_not_reached.empty();
  return "two copies through the ring: " +
         (small ? "the receiver does not reach our memory, and small receives are not announced"
                : facts.why_not_reached);
}

// A message through a slot, where either buffer is on a device.
Choice device_message(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size) {
  Choice choice = through_devices(facts, source, target);
  if (!on_device(source)) choice.why += kWithoutSlot;
  const bool worker = MessageSelection(facts).route_by_worker(source, target, size);
  return worker ? or_by_worker(source, target, choice) : choice;
}

}  // namespace

Choice choose_message(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size) {
  const MessageSelection selection(facts);
  const oh_path framed = selection.framed_path(size, /*eager=*/false);
  const bool shared = source == MemoryKind::kShared || target == MemoryKind::kShared;
  switch (selection.route(source, target, size, /*pending=*/false)) {
    case Route::kEmpty:
      return {framed, Method::kInline, "no bytes beside the control message"};
    case Route::kEager:
      return eager_message(facts, target, selection.framed_path(size, /*eager=*/true));
    case Route::kFrames:
      return {framed, Method::kStream, why_framed(facts)};
    case Route::kHostCopy:
      return {framed, Method::kDirect, how_direct(facts, shared)};
    case Route::kStaging:
      return by_staging(facts);
    case Route::kNone:
      return {OH_PATH_NONE, Method::kNone, facts.why_no_device};
    case Route::kSourceEngine:
    case Route::kTargetEngine:
    case Route::kSlab:
    case Route::kRelay:
      return device_message(facts, source, target, size);
  }
  return {};
}

Choice choose_pending(const LinkFacts& facts, MemoryKind source, MemoryKind target, uint64_t size) {
  const MessageSelection selection(facts);
  const Route ready = selection.route(source, target, size, /*pending=*/false);
  const Route pending = selection.route(source, target, size, /*pending=*/true);
  // Both engines report the same path.
  const bool by_engine = pending == Route::kSourceEngine || pending == Route::kTargetEngine;
  if (by_engine || (pending == ready && pending != Route::kSlab)) {
    return choose_message(facts, source, target, size);
  }
  const std::string why =
      ", as the target's engine does not wait for work on ours; like other messages if the receive "
      "was posted first";
  if (pending == Route::kRelay) {
    return {OH_PATH_RELAY, Method::kStream, "through pinned host memory" + why};
  }
  return {OH_PATH_STAGED, Method::kStream,
          "two copies through a slab on the target's GPU" + why + over(facts)};
}

Choice choose_one_sided(const LinkFacts& facts, MemoryKind local, MemoryKind remote,
                        uint64_t size) {
  return Selection::explain(facts, path_table(), {local, remote}, size);
}

bool may_need_target(const LinkFacts& facts) {
  return choose_one_sided(facts, MemoryKind::kHost, MemoryKind::kHost, 1).method != Method::kDirect;
}

Selection::Selection(const LinkFacts& facts, const PathTable& table)
    : facts_(facts), table_(table) {
  for (MemoryKind local : kAllKinds) {
    for (MemoryKind remote : kAllKinds) {
      Row& row = rows_[index(local)][index(remote)];
      for (size_t i = 0; i < kPathCount; ++i) {
        row.set(i, table[i].estimate(facts, {local, remote}).cost);
      }
    }
  }
}

Choice Selection::explain(const LinkFacts& facts, const PathTable& table, const Ends& ends,
                          uint64_t size) {
  if (size == 0) {
    return {bulk_path(facts), Method::kNone, "no bytes: a notification travels as a message"};
  }
  std::array<Estimate, kPathCount> estimates;
  Row row;
  for (size_t i = 0; i < kPathCount; ++i) {
    estimates[i] = table[i].estimate(facts, ends);
    row.set(i, estimates[i].cost);
  }
  const PathName name = cheapest_of(row, size, [](PathName) { return true; });
  if (name == PathName::kCount) {
    return {OH_PATH_NONE, Method::kNone, why_not_at_all(facts, on_device(ends.local))};
  }
  const Estimate& found = estimates[static_cast<size_t>(name)];
  return size <= found.small_max ? found.small : found.choice;
}

namespace {

// Whether the pair of memory kinds gets rows of its own.
bool occurs(const LinkFacts& facts, MemoryKind source, MemoryKind target) {
  const bool pinned = source == MemoryKind::kPinned || target == MemoryKind::kPinned;
  if (pinned && !on_device(source) && !on_device(target)) return false;
  return !(on_device(source) && !facts.our_gpu) && !(on_device(target) && !facts.their_gpu);
}

using Choose = Choice (*)(const LinkFacts& facts, MemoryKind source, MemoryKind target,
                          uint64_t size);

// Appends a row for each range of sizes with the same choice. The choice can change only after the
// sizes in `lasts`.
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

// Atomic operations of the calling thread: one_sided/atomics.h and stream/stream_atomics.h.
Choice choose_atomic(const LinkFacts& facts, MemoryKind target) {
  if (!on_device(target)) {
    if (facts.segment && (facts.same_process || target == MemoryKind::kShared)) {
      return {bulk_path(facts), Method::kDirect, "one CPU instruction of the calling thread"};
    }
    return {
        OH_PATH_INLINE, Method::kInline,
        "by a thread of the owner, which a control message asks: the memory is not mapped here"};
  }
  const std::string only = "only a kernel carries them out, and ";
  if (!facts.our_gpu) {
    return {OH_PATH_NONE, Method::kNone, only + "this endpoint is for host memory"};
  }
  if (facts.stream_path != OH_PATH_NVLINK) {
    return {OH_PATH_NONE, Method::kNone, only + "no kernel of onehop can: " + facts.why_stream};
  }
  if (target == MemoryKind::kDevicePrivate && !(facts.same_process && facts.same_gpu)) {
    return {OH_PATH_NONE, Method::kNone, only + "the memory cannot be mapped on our GPU"};
  }
  return {OH_PATH_NVLINK, Method::kDirect, "by a kernel of our GPU" + over(facts)};
}

// Stream-ordered messages and signals: one path for all sizes.
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
                    {0, std::min(facts.granted_inline, largest_eager(facts)), largest_eager(facts),
                     facts.eager_max, facts.worker_max},
                    &rows);
      if (choose_pending(facts, source, target, UINT64_MAX).path ==
          choose_message(facts, source, target, UINT64_MAX).path) {
        continue;
      }
      explain_sizes(facts, {"pending message", source, target}, choose_pending, {0}, &rows);
    }
  }
  for (MemoryKind local : kAllKinds) {
    for (MemoryKind remote : kAllKinds) {
      if (!occurs(facts, local, remote)) continue;
      explain_sizes(facts, {"put/get", local, remote}, choose_one_sided, {0, facts.worker_max},
                    &rows);
    }
  }
  for (MemoryKind target : kAllKinds) {
    if (!occurs(facts, MemoryKind::kHost, target)) continue;
    rows.push_back({"atomic", MemoryKind::kHost, target, 8, 8, choose_atomic(facts, target)});
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
  // Whether process_vm_readv works at all; each pair of peers probes it again.
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
