// SPDX-License-Identifier: Apache-2.0
#include "stream/stream_moves.h"

#include <utility>
#include <vector>

#include "device/batches.h"
#include "stream/mapped_region.h"
#include "stream/proxy/proxy_calls.h"
#include "stream/stream_calls.h"

namespace oh {
namespace {

// How the blocks of one part are moved: by proxy if the region is not mapped.
struct Way {
  const MovePart& part;
  MappedRegion mapped;
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
      Result<MappedRegion> mapped =
          map_region(*endpoint_, *peer_, part.target, RegionIn::kDeviceOrHost);
      if (mapped.status().code() == OH_ERR_RETIRED) return mapped.status();
      if (!mapped.ok()) OH_RETURN_IF_ERROR(plan_proxy(part, mapped.status()));
      proxied = proxied || !mapped.ok();
      ways_.push_back({part, mapped.ok() ? std::move(*mapped) : MappedRegion{}});
      blocks_ += part.blocks.size();
    }
    if (proxied || ways_.empty()) return {};
    OH_ASSIGN_OR_RETURN(capturing_, gpu().is_capturing(move_.stream));
    return {};
  }
  bool has_blocks() const { return blocks_ > 0; }

  // Holds the memory of what was enqueued, even after an error.
  Status enqueue() {
    Status status = enqueue_all();
    hold_memory();
    return status;
  }

 private:
  cuda::Gpu& gpu() const { return *endpoint_->device().gpu(); }

  // `why`: the error of map_region().
  Status plan_proxy(const MovePart& part, const Status& why) {
    StreamLink& stream = peer_->stream();
    if (!stream.why_not().ok()) return why;
    OH_ASSIGN_OR_RETURN(capturing_, connect_for(*endpoint_, *peer_, move_.stream, move_.deadline));
    if (!stream.by_proxy()) return why;
    Status usable = memory_for_kernels(gpu(), part.data, part.size).status();
    if (usable.code() != OH_ERR_INVALID) return usable;
    return error(
        OH_ERR_INVALID,
        "%llu bytes at %p are not memory of %s, and the region is not mapped here: the proxy "
        "moves memory of the endpoint's GPU only. Copy them there, or use the host domain "
        "(oh_peer_put, oh_peer_get)",
        static_cast<unsigned long long>(part.size), part.data, gpu().facts().name.c_str());
  }

  Status enqueue_all() {
    std::vector<kernels::BatchBlock> by_kernel;
    uint64_t bytes = 0;
    for (const Way& way : ways_) {
      if (way.mapped.base == 0) {
        OH_RETURN_IF_ERROR(enqueue_by_proxy(way.part));
        continue;
      }
      bytes += way.part.bytes;
      const auto [most, shift] = access(way);
      for (const Block& block : way.part.blocks) {
        const uint64_t there = way.mapped.base + block.remote_offset;
        const uint64_t here = reinterpret_cast<uint64_t>(block.local) + shift;
        const kernels::BatchBlock copy{move_.put ? there : here, move_.put ? here : there,
                                       block.size};
        if (block.size <= most) {
          by_kernel.push_back(copy);
        } else {
          OH_RETURN_IF_ERROR(
              gpu().copy(move_.stream, copy.to, copy.from, copy.size, nullptr, 0, 0));
        }
      }
    }
    if (!by_kernel.empty()) {
      launched_ = true;
      OH_RETURN_IF_ERROR(copy_in_stream(gpu(), move_.stream, by_kernel));
    }
    if (!capturing_ && bytes > 0) peer_->stream().counts().count_move(move_.put, bytes);
    return {};
  }

  struct Access {
    uint64_t most = 0;   // the largest block that a kernel may copy; 0: none
    uint64_t shift = 0;  // of the local memory to its address for the device
  };
  Access access(const Way& way) {
    const MovePart& part = way.part;
    const bool many = blocks_ > 1 && gpu().kernels().stream_batch();
    if (many && memory_for_kernels(gpu(), part.data, part.size).ok()) {
      const PinnedView& host = way.mapped.host;
      return {!way.mapped.in_host ? kLongestForKernel : host.pinned ? kLongestBesideHost : 0};
    }
    PinnedView host = view_pinned(endpoint_->device().gpu(), part.data, part.size, /*ask=*/many);
    const bool kernel = many && host.pinned && (!way.mapped.in_host || way.mapped.host.pinned);
    const Access found{kernel ? kLongestBesideHost : 0, host.shift};
    hold(std::move(host));
    return found;
  }
  // The registration goes first: the memory's owner unregisters it before it unmaps it.
  void hold(PinnedView host) {
    if (host.registration) held_.push_back(std::move(host.registration));
    if (host.memory) held_.push_back(std::move(host.memory));
  }

  Status enqueue_by_proxy(const MovePart& part) const {
    peer_->stream().proxy().know(part.target);
    const uint64_t way = move_.put ? 0 : kernels::kOfGet;
    std::vector<ProxyCall> calls;
    for (const Block& block : part.blocks) {
      ProxyCall call{endpoint_, peer_};
      call.op.data = reinterpret_cast<uint64_t>(block.local);
      call.op.bytes = block.size;
      call.op.lane.timeout_ns = move_.timeout_ns;
      call.place =
          kernels::ProxyPlace{part.target.index | way, part.target.version, block.remote_offset};
      calls.push_back(std::move(call));
      if (calls.size() < kernels::kMostProxied && &block != &part.blocks.back()) continue;
      OH_RETURN_IF_ERROR(launch_by_proxy(calls, move_.stream, capturing_));
      calls.clear();
    }
    return {};
  }

  // Needed for kernels without imports, too: hold() keeps the Gpu, which owns the kernels.
  void hold_memory() {
    for (Way& way : ways_) {
      hold(std::move(way.mapped.host));
      if (way.mapped.import) held_.push_back(std::move(way.mapped.import));
    }
    if (held_.empty() && !launched_) return;
    std::shared_ptr<void> held;
    if (held_.size() == 1) held = std::move(held_.front());
    if (held_.size() > 1) held = std::make_shared<Held>(std::move(held_));
    peer_->stream().memory().hold(move_.stream, capturing_, std::move(held));
  }

  const std::shared_ptr<Endpoint>& endpoint_;
  const std::shared_ptr<Peer>& peer_;
  const StreamMove& move_;
  std::vector<Way> ways_;
  using Held = std::vector<std::shared_ptr<void>>;
  Held held_;
  size_t blocks_ = 0;
  bool capturing_ = false;
  bool launched_ = false;  // a kernel was launched
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

}  // namespace oh
