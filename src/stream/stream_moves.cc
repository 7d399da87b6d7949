// SPDX-License-Identifier: Apache-2.0
#include "stream/stream_moves.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "device/batches.h"
#include "device/locate.h"
#include "stream/proxy/proxy_calls.h"
#include "stream/stream_calls.h"

namespace oh {
namespace {

// How the blocks of one part go.
struct Way {
  const MovePart& part;
  uint64_t base;  // of the region, as this GPU has it mapped; 0: by proxy
};

class Moving {
 public:
  Moving(const std::shared_ptr<Endpoint>& endpoint, const std::shared_ptr<Peer>& peer,
         const StreamMove& move)
      : endpoint_(endpoint), peer_(peer), move_(move) {}

  // Finds the way of each part, and whether the stream is being captured.
  Status plan() {
    bool proxied = false;
    for (const MovePart& part : move_.parts) {
      if (part.blocks.empty()) continue;
      Result<oh_remote_memory> memory = region_for_kernels(*endpoint_, *peer_, part.target);
      if (!memory.ok()) OH_RETURN_IF_ERROR(plan_proxy(part, memory.status()));
      proxied = proxied || !memory.ok();
      ways_.push_back({part, memory.ok() ? memory->base : 0});
      blocks_ += part.blocks.size();
    }
    if (proxied || ways_.empty()) return {};
    OH_ASSIGN_OR_RETURN(capturing_, gpu().is_capturing(move_.stream));
    return {};
  }

  bool has_blocks() const { return blocks_ > 0; }

  Status enqueue() {
    std::vector<kernels::BatchBlock> by_kernel;
    std::vector<ProxyCall> by_proxy;
    uint64_t bytes = 0;
    for (const Way& way : ways_) {
      if (way.base == 0) {
        add_calls(way.part, &by_proxy);
        continue;
      }
      bytes += way.part.bytes;
      const bool kernel = kernel_copies(way.part);
      for (const Block& block : way.part.blocks) {
        const uint64_t there = way.base + block.remote_offset;
        const auto here = reinterpret_cast<uint64_t>(block.local);
        const kernels::BatchBlock copy{move_.put ? there : here, move_.put ? here : there,
                                       block.size};
        if (kernel) {
          by_kernel.push_back(copy);
        } else {
          OH_RETURN_IF_ERROR(
              gpu().copy(move_.stream, copy.to, copy.from, copy.size, nullptr, 0, 0));
        }
      }
    }
    OH_RETURN_IF_ERROR(copy_in_stream(gpu(), move_.stream, by_kernel));
    for (size_t i = 0; i < by_proxy.size(); i += kernels::kMostProxied) {
      const size_t end = std::min<size_t>(by_proxy.size(), i + kernels::kMostProxied);
      OH_RETURN_IF_ERROR(launch_by_proxy({by_proxy.begin() + static_cast<ptrdiff_t>(i),
                                          by_proxy.begin() + static_cast<ptrdiff_t>(end)},
                                         move_.stream, capturing_));
    }
    if (!capturing_ && bytes > 0) peer_->stream().counts().count_move(move_.put, bytes);
    hold_imports();
    return {};
  }

 private:
  cuda::Gpu& gpu() const { return *endpoint_->device().gpu(); }

  // `why`: the region is not mapped here.
  Status plan_proxy(const MovePart& part, const Status& why) {
    StreamLink& stream = peer_->stream();
    if (!stream.why_not().ok()) return why;
    OH_ASSIGN_OR_RETURN(capturing_, connect_for(*endpoint_, *peer_, move_.stream, move_.deadline));
    if (!stream.by_proxy()) return why;
    return memory_for_kernels(gpu(), part.data, part.size).status();
  }

  bool kernel_copies(const MovePart& part) const {
    return blocks_ > 1 && gpu().kernels().stream_batch() &&
           memory_for_kernels(gpu(), part.data, part.size).ok();
  }

  void add_calls(const MovePart& part, std::vector<ProxyCall>* calls) const {
    peer_->stream().proxy().know(part.target);
    const uint64_t way = move_.put ? 0 : kernels::kOfGet;
    for (const Block& block : part.blocks) {
      ProxyCall call{endpoint_, peer_};
      call.op.data = reinterpret_cast<uint64_t>(block.local);
      call.op.bytes = block.size;
      call.op.lane.timeout_ns = move_.timeout_ns;
      call.place =
          kernels::ProxyPlace{part.target.index | way, part.target.version, block.remote_offset};
      calls->push_back(std::move(call));
    }
  }

  void hold_imports() const {
    using Imports = std::vector<std::shared_ptr<ImportedBlock>>;
    auto imports = std::make_shared<Imports>();
    for (const Way& way : ways_) {
      if (way.base == 0) continue;
      if (auto import = way.part.target.import.lock()) imports->push_back(std::move(import));
    }
    if (imports->empty()) return;
    peer_->stream().memory().hold(move_.stream, capturing_, std::move(imports));
  }

  const std::shared_ptr<Endpoint>& endpoint_;
  const std::shared_ptr<Peer>& peer_;
  const StreamMove& move_;
  std::vector<Way> ways_;
  size_t blocks_ = 0;
  bool capturing_ = false;
};

}  // namespace

Status move_by_stream(const std::shared_ptr<Endpoint>& endpoint, const std::shared_ptr<Peer>& peer,
                      const StreamMove& move) {
  OH_RETURN_IF_ERROR(endpoint->usable());
  OH_RETURN_IF_ERROR(peer->usable());
  Moving moving(endpoint, peer, move);
  OH_RETURN_IF_ERROR(moving.plan());
  return moving.has_blocks() ? moving.enqueue() : Status();
}

Result<oh_remote_memory> region_for_kernels(Endpoint& endpoint, Peer& peer,
                                            const RemoteTarget& target) {
  if (!endpoint.device().gpu()) return peer.stream().why_not();
  if (target.on_device && peer.within_process() &&
      kernels_reach(*endpoint.device().gpu(), target.base, target.length)) {
    return oh_remote_memory{target.base, target.length};
  }
  std::shared_ptr<ImportedBlock> import = target.import.lock();
  uint8_t* base =
      import && target.on_device ? import->translate(target.base, target.length) : nullptr;
  if (base) return oh_remote_memory{reinterpret_cast<uint64_t>(base), target.length};
  return error(OH_ERR_NOT_VIABLE,
               "the region of %s is not mapped on this GPU: use oh_peer_put or oh_peer_get, which "
               "find another way",
               peer.link().name.c_str());
}

}  // namespace oh
