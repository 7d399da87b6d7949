// SPDX-License-Identifier: Apache-2.0
//
// Messages, puts and signals in the order of a stream, and messages of a kernel of ours.
#include "kernels.h"
#include "onehop/stream.h"
#include "stream_loops.h"

namespace bench {
namespace {

using onehop::check;

constexpr uint32_t kDataSlot = 0;
constexpr uint32_t kDoneSlot = 1;
// Of their own: a lane's credit lies in one place or the other for good. Equally wide if the slab
// has room for that.
constexpr uint32_t kLane = 0;
constexpr uint32_t kSingleLane = 1;
constexpr unsigned kWarp = 32;
constexpr unsigned kPutBlocks = 8;
constexpr unsigned kPutThreads = 512;

// What all rows have: memory that the other side has mapped, and lanes that are connected.
class Ordered {
 public:
  Ordered(Side& side, const Spec& spec)
      : side_(side),
        spec_(spec),
        out_(side.device(), spec.memory, spec.size),
        in_(side.device(), spec.memory, spec.size),
        region_(side.endpoint().register_memory(in_.data(), in_.size())),
        remote_(side.swap_region(region_)) {
    check(oh_peer_warmup(peer(), OH_TIMEOUT_DEFAULT));
    side.sync();
  }

  StreamPair pair() {
    void* on = side_.device().stream();
    const size_t size = spec_.size;
    return {
        side_.device(),
        side_.number(),
        out_.data(),
        in_.data(),
        [this] { side_.sync(); },
        [this, on, size] { check(oh_peer_stream_send(peer(), on, out_.data(), size, nullptr)); },
        [this, on, size] { check(oh_peer_stream_recv(peer(), on, in_.data(), size, nullptr)); },
        [this] { signal(kDoneSlot); },
        [this] { await(kDoneSlot, 1); }};
  }
  void put() {
    check(oh_peer_stream_put(peer(), side_.device().stream(), out_.data(), remote_.get(), 0,
                             spec_.size));
  }
  void signal(uint32_t slot) {
    check(oh_peer_stream_signal(peer(), side_.device().stream(), slot, 1));
  }
  void await(uint32_t slot, uint64_t count) {
    check(oh_peer_stream_wait_signal(peer(), side_.device().stream(), slot, count, nullptr));
  }
  oh_lane_handle handle(uint32_t lane) {
    oh_lane_handle handle;
    check(oh_peer_device_handle(peer(), lane, &handle));
    return handle;
  }
  PutArgs put_args() {
    PutArgs args{handle(kLane), {}, address_of(out_.data()), spec_.size, kDataSlot};
    check(oh_remote_region_device(remote_.get(), &args.remote));
    return args;
  }
  Payload payload() const {
    return {address_of(out_.data()), address_of(in_.data()), spec_.size, 0, 0, 0, 0, 0};
  }
  // The row's outcome, unless a lane has failed.
  Outcome end(Outcome outcome) {
    side_.peer().check_async_error();
    auto info = onehop::detail::sized<oh_stream_info>();
    check(oh_peer_get_stream_info(peer(), &info));
    outcome.path = info.path;
    side_.sync();
    return outcome;
  }

 private:
  oh_peer* peer() const { return side_.peer().get(); }

  Side& side_;
  const Spec& spec_;
  GpuBlock out_;
  GpuBlock in_;
  onehop::Region region_;
  onehop::RemoteRegion remote_;
};

Outcome kernel_messages(Side& side, const Spec& spec, Ordered& ordered) {
  const Device& device = side.device();
  const Kernels kernels(device);
  const GpuBlock findings(device, Memory::kCuda, sizeof(Findings));
  const std::string name = spec.threads == kWarp ? "bench_lane_warp" : "bench_lane_block";
  cuda::Function plain = kernels.find(name.c_str());
  cuda::Function checked = kernels.find((name + "_checked").c_str());
  const bool single = spec.mode == Mode::kKernelSingle;
  LaneArgs args{ordered.handle(single ? kSingleLane : kLane), ordered.payload()};
  if (single) args.lane.flags |= OH_LANE_SINGLE;
  args.payload.findings = address_of(findings.data());
  args.payload.side = static_cast<uint32_t>(side.number());
  auto launch = [&](bool check_bytes, uint32_t rounds, bool corrupt) {
    args.payload.rounds = rounds;
    args.payload.corrupt = corrupt;
    kernels.launch(check_bytes ? checked : plain, 1, static_cast<unsigned>(spec.threads), args);
  };
  return ordered.end(
      kernel_latency(spec, side.number(), {device, findings.data(), [&] { side.sync(); }, launch}));
}

}  // namespace

Outcome ordered_latency(Side& side, const Spec& spec) {
  Current current(side.device());
  Ordered ordered(side, spec);
  if (spec.mode == Mode::kKernel || spec.mode == Mode::kKernelSingle) {
    return kernel_messages(side, spec, ordered);
  }
  return ordered.end(stream_latency(spec, ordered.pair()));
}

Outcome ordered_bandwidth(Side& side, const Spec& spec) {
  Current current(side.device());
  Ordered ordered(side, spec);
  StreamPair pair = ordered.pair();
  if (spec.mode == Mode::kKernelPut) {
    const Kernels kernels(side.device());
    const PutArgs args = ordered.put_args();
    cuda::Function put = kernels.find("bench_put");
    pair.give = [&] { kernels.launch(put, kPutBlocks, kPutThreads, args); };
    pair.take = [&] { ordered.await(kDataSlot, kPutBlocks); };
    return ordered.end(stream_bandwidth(spec, pair));
  }
  if (spec.mode != Mode::kStream) {
    pair.give = [&] {
      ordered.put();
      ordered.signal(kDataSlot);
    };
    pair.take = [&] { ordered.await(kDataSlot, 1); };
  }
  return ordered.end(stream_bandwidth(spec, pair));
}

}  // namespace bench
