// SPDX-License-Identifier: Apache-2.0
#include "stream/mapped_region.h"

#include "device/locate.h"

namespace oh {

Result<MappedRegion> map_region(Endpoint& endpoint, Peer& peer, const RemoteTarget& target) {
  if (!endpoint.device().gpu()) return peer.stream().why_not();
  MappedRegion mapped;
  if (target.on_device && peer.within_process() &&
      kernels_reach(*endpoint.device().gpu(), target.base, target.length)) {
    mapped.base = target.base;
  } else if (target.on_device && (mapped.import = target.import.lock())) {
    mapped.base = reinterpret_cast<uint64_t>(mapped.import->translate(target.base, target.length));
  }
  if (mapped.base == 0) {
    return error(OH_ERR_NOT_VIABLE,
                 "the region of %s is not mapped on this GPU: use oh_peer_put or oh_peer_get, "
                 "which find another way",
                 peer.link().name.c_str());
  }
  OH_RETURN_IF_ERROR(peer.operations().one_sided().still_registered(target));
  return mapped;
}

}  // namespace oh
