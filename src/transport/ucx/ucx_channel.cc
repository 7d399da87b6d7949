// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_channel.h"

#include <sched.h>

#include <algorithm>
#include <utility>

namespace oh {
namespace {
constexpr int64_t kCloseTime = kSecond;
// With RDMA, UCX's rendezvous is fastest for whole messages. Over tcp a part that fits into one
// segment is copied from UCX's segment straight to its target.
constexpr uint64_t kMostByRdma = 1 << 30;
constexpr uint64_t kMostByTcp = 60 * 1024;
}  // namespace

UcxChannel::UcxChannel(std::shared_ptr<UcxWorker> worker, uint64_t peer_credit, uint32_t key,
                       uint64_t most_zero_copy)
    : CountedCredit(peer_credit),
      endpoint_(std::move(worker)),
      packer_(endpoint_),
      inbox_(endpoint_.worker().lock),
      key_(key),
      most_zero_copy_(most_zero_copy) {
  if (most_zero_copy_ == 0) most_zero_copy_ = ucx::has_rdma() ? kMostByRdma : kMostByTcp;
  link_ = endpoint_.worker().add(this);
}

UcxChannel::~UcxChannel() {
  disconnect();
  endpoint_.worker().remove(link_);
  // Drop arrived frames that were not handled.
  Frame frame;
  while (ready()) {
    (void)peek(&frame).ok();
    pop();
  }
  UcxWorker& worker = endpoint_.worker();
  SpinGuard guard(worker.lock);
  for (void* data : inbox_.take_stashed()) worker.library().am_release(worker.handle(), data);
}

Result<UcxChannel::Remote> UcxChannel::own(bool network) const {
  UcxWorker& worker = endpoint_.worker();
  OH_ASSIGN_OR_RETURN(Bytes address, worker.address(network));
  return Remote{std::move(address), link_, key_, worker.max_header()};
}

Status UcxChannel::connect(const Remote& remote, uint64_t asked_inline) {
  remote_ = remote;
  UcxWorker& worker = endpoint_.worker();
  uint64_t header = std::min<uint64_t>(worker.max_header(), remote.max_header);
  if (remote.address.empty() || header < kUcxBodySize) {
    return error(OH_ERR_NOT_VIABLE, "UCX takes headers of %llu bytes only, %zu are needed",
                 static_cast<unsigned long long>(header), kUcxBodySize);
  }
  max_inline_ = std::min({asked_inline, header - kUcxBodySize, uint64_t{UINT16_MAX}});
  packer_.open(remote_.link, remote_.key, max_inline_);
  SpinGuard guard(worker.lock);
  return endpoint_.connect(remote_.address);
}

Status UcxChannel::probe(Deadline deadline) {
  UcxWorker& worker = endpoint_.worker();
  size_t size = kUcxBodySize + max_inline_;
  {
    SpinGuard guard(worker.lock);
    probe_answer_ = 0;
    packer_.send_probe(kUcxProbe, size);
  }
  while (true) {
    bool any = worker.progress();
    {
      SpinGuard guard(worker.lock);
      if (probe_answer_ == size) return {};
      if (endpoint_.is_broken()) return Status(OH_ERR_NOT_VIABLE, endpoint_.why_broken());
    }
    if (deadline.passed()) {
      return error(OH_ERR_NOT_VIABLE,
                   "UCX has an address of the peer, but no answer comes back: is a firewall "
                   "between them, or does UCX take the wrong device (UCX_NET_DEVICES)?");
    }
    if (!any) sched_yield();
  }
}

uint64_t UcxChannel::zero_copy_part(uint64_t size) const {
  constexpr uint64_t kLine = 64;
  const uint64_t count = std::max<uint64_t>(1, (size + most_zero_copy_ - 1) / most_zero_copy_);
  return std::min(most_zero_copy_, ((size + count - 1) / count + kLine - 1) & ~(kLine - 1));
}

std::shared_ptr<InFlight> UcxChannel::send_zero_copy(const Frame& frame) {
  UcxWorker& worker = endpoint_.worker();
  SpinGuard guard(worker.lock);
  if (packer_.is_full()) return nullptr;
  packer_.send_pack();
  std::shared_ptr<InFlight> in_flight = std::move(spare_);
  if (in_flight) {
    in_flight->over.store(false, std::memory_order_relaxed);
  } else {
    in_flight = std::make_shared<InFlight>(worker, ucx::symbol::am_send);
  }
  if (!endpoint_.is_usable()) return InFlight::cancelled(std::move(in_flight));
  packer_.write_head(in_flight->head, frame, /*is_short=*/false);
  const UcxEndpoint::Sending what{.header = in_flight->head,
                                  .header_size = kUcxBodySize,
                                  .payload = {frame.payload, frame.payload_size},
                                  .asked = frame.type == FrameType::kData && !frame.eager};
  void* pointer = endpoint_.send(what, InFlight::on_over, in_flight.get());
  // UCX completed the send at once: the buffer is free.
  if (!pointer) spare_ = in_flight;
  return InFlight::begin(std::move(in_flight), pointer);
}

std::shared_ptr<InFlight> UcxChannel::fetch(const Frame& frame, uint8_t* to) {
  UcxWorker& worker = endpoint_.worker();
  auto in_flight = std::make_shared<InFlight>(worker, ucx::symbol::am_receive);
  ucx::RequestParam param;
  param.attributes =
      ucx::RequestParam::kCallback | ucx::RequestParam::kUserData | ucx::RequestParam::kMemoryType;
  param.callback.receive = InFlight::on_received;
  param.user_data = in_flight.get();
  SpinGuard guard(worker.lock);
  void* pointer = worker.library().am_receive(worker.handle(), inbox_.take_data(), to,
                                              frame.payload_size, &param);
  return InFlight::begin(std::move(in_flight), pointer);
}

void UcxChannel::give_back(void* data) {
  UcxWorker& worker = endpoint_.worker();
  SpinGuard guard(worker.lock);
  worker.library().am_release(worker.handle(), data);
}

ucx::Code UcxChannel::arrived(const UcxHead& head, ByteView header, void* data, size_t size,
                              uint64_t attributes) {
  if (static_cast<uint32_t>(head.word) != key_) return ucx::kOk;
  endpoint_.note_heard();
  if (endpoint_.is_broken()) return ucx::kOk;
  FrameType type = word_type(head.word);
  if (type == kUcxProbe) {
    // A peer sends one probe, before any frame.
    if (packer_.is_full()) {
      endpoint_.break_off("it sends probes and takes no answers");
    } else {
      packer_.send_probe(kUcxProbeAnswer, header.size());
    }
    return ucx::kOk;
  }
  if (type == kUcxProbeAnswer) {
    probe_answer_ = header.size();
    return ucx::kOk;
  }
  const UcxInbox::Outcome outcome =
      inbox_.arrive({.head = head,
                     .header = header.subspan(sizeof(head)),
                     .data = data,
                     .size = size,
                     .rendezvous = (attributes & ucx::AmReceived::kRendezvous) != 0,
                     .may_keep = (attributes & ucx::AmReceived::kData) != 0});
  if (!outcome.broken.ok()) endpoint_.break_off(outcome.broken.text());
  if (outcome.ready) endpoint_.worker().note_arrival();
  return outcome.keeps ? ucx::kInProgress : ucx::kOk;
}

void UcxChannel::failed(ucx::Code code) {
  endpoint_.break_off(strf("UCX: %s (%d)", endpoint_.worker().library().status_string(code), code));
}

Status UcxChannel::broken_by(const InFlight& in_flight) {
  UcxWorker& worker = endpoint_.worker();
  {
    SpinGuard guard(worker.lock);
    endpoint_.break_off(worker.library().failure(in_flight.code, in_flight.call, "").text());
  }
  return broken();
}

void UcxChannel::disconnect() {
  void* request = nullptr;
  {
    SpinGuard guard(endpoint_.worker().lock);
    packer_.stop();
    request = endpoint_.close();
  }
  if (request) {
    (void)endpoint_.wait_for(request, Deadline::after(kCloseTime), [] { return true; });
  }
}

}  // namespace oh
