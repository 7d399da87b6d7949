// SPDX-License-Identifier: Apache-2.0
#include "stream/mapped_region.h"

#include "device/locate.h"

namespace oh {

namespace {

MappedRegion map_host(const std::shared_ptr<cuda::Gpu>& gpu, const Peer& peer,
                      const RemoteTarget& target) {
  MappedRegion mapped;
  mapped.in_host = true;
  uint64_t base = 0;
  if (peer.within_process()) {
    base = target.base;
    mapped.host = view_pinned(gpu, reinterpret_cast<const void*>(base), target.length,
                              /*ask=*/true);
  } else if ((mapped.import = target.import.lock())) {
    base = reinterpret_cast<uint64_t>(mapped.import->translate(target.base, target.length));
    mapped.host = view_pinned(gpu, mapped.import);
  }
  // Engines use a registration of another GPU, too.
  if (mapped.host.pinned || mapped.host.registration) mapped.base = base + mapped.host.shift;
  return mapped;
}

}  // namespace

Result<MappedRegion> map_region(Endpoint& endpoint, Peer& peer, const RemoteTarget& target,
                                RegionIn where) {
  if (!endpoint.device().gpu()) return peer.stream().why_not();
  MappedRegion mapped;
  if (!target.on_device && where == RegionIn::kDeviceOrHost) {
    mapped = map_host(endpoint.device().gpu(), peer, target);
  }
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
