// SPDX-License-Identifier: Apache-2.0
//
// Legacy IPC handles: cuMemAlloc memory in other processes.
//
// Threading: any thread.
#include <cstring>

#include "call.h"
#include "session.h"

namespace oh::cuda {
using namespace fake;

Code cuIpcGetMemHandle(IpcHandle* out, DevicePtr address) {
  Call call(Symbol::cuIpcGetMemHandle, kContext);
  if (!call.ok()) return call.code();
  if (!config().ipc) return kNotSupported;
  const Range* range = call.world().find(address);
  if (range == nullptr || range->kind != Kind::kDevice) return kInvalidValue;
  const SharedName name = name_of(*range->backing, 0);
  *out = IpcHandle{};
  memcpy(out->bytes, &name, sizeof(name));
  return kSuccess;
}

Code cuIpcOpenMemHandle_v2(DevicePtr* out, IpcHandle handle, unsigned flags) {
  Call call(Symbol::cuIpcOpenMemHandle_v2, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  if (!config().ipc) return kNotSupported;
  if (flags != kIpcLazyPeerAccess) return kInvalidValue;
  SharedName name;
  memcpy(&name, handle.bytes, sizeof(name));
  const ProcessId self = this_process();
  if (name.pid == self.pid && name.start == self.start) return kInvalidContext;
  for (auto& [base, range] : call.world().ranges) {
    if (range.kind == Kind::kImport && range.context == call.context() &&
        range.backing->object() == name.object) {
      ++range.references;
      *out = base;
      return kSuccess;
    }
  }
  Range range;
  const Code code = open_named(name, &range.backing);
  if (code != kSuccess) return code;
  const BackingFacts& facts = range.backing->facts();
  if (facts.purpose != Purpose::kPlain) return kInvalidValue;
  if (!config().can_access(call.context()->physical, facts.physical)) return kPeerAccessUnsupported;
  range.size = facts.size;
  range.kind = Kind::kImport;
  range.bytes = range.backing->bytes();
  range.keep = range.backing;
  range.context = call.context();
  range.ordinal = call.world().ordinal_of(facts.physical, call.context()->ordinal);
  range.imported = true;
  const DevicePtr base = call.world().place(std::move(range));
  if (base == 0) return kMapFailed;
  *out = base;
  return kSuccess;
}

Code cuIpcCloseMemHandle(DevicePtr base) {
  Call call(Symbol::cuIpcCloseMemHandle, kContext | kUnsafeCall);
  if (!call.ok()) return call.code();
  Range* range = call.world().find_base(base, Kind::kImport);
  if (range == nullptr || range->context != call.context()) return kInvalidValue;
  if (--range->references == 0) call.world().remove(base);
  return kSuccess;
}

}  // namespace oh::cuda
