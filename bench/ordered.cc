// SPDX-License-Identifier: Apache-2.0
//
// Stream-ordered messages, puts and signals, and messages and puts within kernels.
#include "kernels.h"
#include "onehop/stream.h"
#include "side.h"
#include "streams.h"

namespace bench {
namespace {

using onehop::check;

constexpr uint32_t kDataSlot = 0;
constexpr uint32_t kDoneSlot = 1;
// Separate lanes: a lane's credit stays where its first message put it (kSingle). Equally
// wide if the slab has room.
constexpr uint32_t kLane = 0;
constexpr uint32_t kSingleLane = 1;
constexpr unsigned kWarp = 32;
constexpr unsigned kPutBlocks = 8;
constexpr unsigned kPutThreads = 512;

// Memory that the other side has mapped, and connected lanes.
class Ordered : public SlotWire {
 public:
  Ordered(Side& side, const Spec& spec)
      : SlotWire(side), side_(side), spec_(spec), in_memory_(side.make_buffer(spec, spec.size)) {
    region_.emplace(side.endpoint().register_memory(in_memory_->place(), spec.size));
    remote_.emplace(side.swap_region(*region_));
    if (gives(side, spec)) {
      give(spec, {side.number(), side.first()}, side.make_buffer(spec, spec.size));
    }
    if (takes(side, spec)) take(spec, {1 - side.number()}, std::move(in_memory_));
    check(oh_peer_warmup(peer(), OH_TIMEOUT_DEFAULT));
    side.sync();
  }

  void isend(uint64_t) override {
    if (spec_.mode == Mode::kStreamPut) {
      check(oh_peer_stream_put(peer(), stream(), from_->place(0), remote_->get(), 0, spec_.size));
      return signal(kDataSlot);
    }
    check(oh_peer_stream_send(peer(), stream(), from_->place(0), spec_.size, nullptr));
  }
  void irecv(uint64_t) override {
    if (spec_.mode == Mode::kStreamPut) {
      return await(kDataSlot, 1);
    }
    check(oh_peer_stream_recv(peer(), stream(), to_->place(0), spec_.size, nullptr));
  }
  void confirm_on_stream() override { side_.first() ? await(kDoneSlot, 1) : signal(kDoneSlot); }
  // Throws the error of a failed lane.
  std::string path() const override {
    side_.peer().check_async_error();
    auto info = onehop::detail::sized<oh_stream_info>();
    check(oh_peer_get_stream_info(peer(), &info));
    return oh_path_name(info.path);
  }

 protected:
  void signal(uint32_t slot) { check(oh_peer_stream_signal(peer(), stream(), slot, 1)); }
  void await(uint32_t slot, uint64_t count) {
    check(oh_peer_stream_wait_signal(peer(), stream(), slot, count, nullptr));
  }
  oh_lane_handle handle(uint32_t lane) const {
    oh_lane_handle handle;
    check(oh_peer_device_handle(peer(), lane, &handle));
    return handle;
  }
  const onehop::RemoteRegion& remote() const { return *remote_; }

  Side& side_;
  const Spec spec_;

 private:
  oh_peer* peer() const { return side_.peer().get(); }
  void* stream() const { return side_.device().stream(); }

  // Kept by a side that receives nothing, because it is registered.
  std::unique_ptr<Buffer> in_memory_;
  std::optional<onehop::Region> region_;
  std::optional<onehop::RemoteRegion> remote_;
};

// Puts and signals within a kernel.
class KernelPuts : public Ordered {
 public:
  KernelPuts(Side& side, const Spec& spec)
      : Ordered(side, spec), kernels_(side.device()), put_(kernels_.find("bench_put")) {
    if (!from_) return;
    args_ = {handle(kLane), {}, address_of(from_->place(0)), spec.size, kDataSlot};
    check(oh_remote_region_device(remote().get(), &args_.remote));
  }
  void isend(uint64_t) override { kernels_.launch(put_, kPutBlocks, kPutThreads, args_); }
  void irecv(uint64_t) override { await(kDataSlot, kPutBlocks); }

 private:
  const Kernels kernels_;
  cuda::Function put_;
  PutArgs args_{};
};

// Messages within a kernel.
class KernelMessages : public Ordered {
 public:
  KernelMessages(Side& side, const Spec& spec)
      : Ordered(side, spec),
        kernels_(side.device()),
        findings_(side.device(), Memory::kCuda, sizeof(Findings)) {
    const bool single = spec.mode == Mode::kKernelSingle;
    args_.lane = handle(single ? kSingleLane : kLane);
    args_.payload = kernel_payload(spec, *this, findings_.data());
  }
  Outcome run() {
    std::string name = spec_.op == Op::kLatency ? "bench_lane" : "bench_flow";
    if (spec_.mode == Mode::kKernelSingle) name += "_single";
    name += spec_.threads == kWarp          ? "_warp"
            : spec_.threads <= kMostThreads ? "_block"
                                            : "_cluster";
    Outcome outcome = kernel_row(spec_, *this, side_.device(), kernels_, name, args_);
    outcome.path = path();
    side_.sync();
    return outcome;
  }

 private:
  const Kernels kernels_;
  const GpuBlock findings_;
  LaneArgs args_{};
};

}  // namespace

Outcome ordered(Side& side, const Spec& spec) {
  const Device& device = side.device();
  Current current(device);
  if (spec.mode == Mode::kKernel || spec.mode == Mode::kKernelSingle) {
    return KernelMessages(side, spec).run();
  }
  if (spec.mode == Mode::kKernelPut) {
    KernelPuts wire(side, spec);
    return stream_row(wire, device, spec);
  }
  Ordered wire(side, spec);
  return stream_row(wire, device, spec);
}

}  // namespace bench
