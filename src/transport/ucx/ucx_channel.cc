// SPDX-License-Identifier: Apache-2.0
//
// The life of a link, and how UCX is given something; ucx_pipeline.cc has what is copied for it,
// ucx_inbox.cc what arrives.
#include "transport/ucx/ucx_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/ucx/ucx_note.h"

namespace oh {
namespace {

constexpr size_t kBodySize = sizeof(UcxHead) + sizeof(FrameBody);
constexpr size_t kShortSize = sizeof(UcxHead) + sizeof(uint64_t);
constexpr int64_t kCloseTime = kSecond;
// What UCX keeps of a message beside its header, about.
constexpr size_t kNoteCost = 512;
// Between cards with RDMA UCX moves a message by itself, and best as a whole. Over tcp a part that
// fits into one of its segments is put where it belongs straight from there.
constexpr uint64_t kMostByRdma = 1 << 30;
constexpr uint64_t kMostByTcp = 60 * 1024;

}  // namespace

UcxChannel::UcxChannel(std::shared_ptr<UcxWorker> worker, uint64_t peer_credit, uint32_t key,
                       uint64_t most_lent)
    : CountedCredit(peer_credit), worker_(std::move(worker)), key_(key), most_lent_(most_lent) {
  if (most_lent_ == 0) most_lent_ = ucx::has_rdma() ? kMostByRdma : kMostByTcp;
  link_ = worker_->add(this);
}

UcxChannel::~UcxChannel() {
  disconnect();
  worker_->remove(link_);
  // Frames that have arrived and were not handled.
  Frame frame;
  while (ready()) {
    (void)peek(&frame).ok();
    pop();
  }
  SpinGuard guard(worker_->lock);
  for (auto& [sequence, stashed] : stash_) {
    if (stashed.arrival.data) {
      worker_->library().am_release(worker_->handle(), stashed.arrival.data);
    }
  }
  // UCX still reads them: they are freed when it is through.
  for (std::unique_ptr<Note>& note : notes_) {
    if (!note->flying) continue;
    note->channel = nullptr;
    (void)note.release();
  }
}

Result<UcxChannel::Remote> UcxChannel::own(bool network) const {
  OH_ASSIGN_OR_RETURN(Bytes address, worker_->address(network));
  return Remote{std::move(address), link_, key_, worker_->max_header()};
}

Status UcxChannel::connect(const Remote& remote, uint64_t asked_inline) {
  remote_ = remote;
  ucx::EndpointParams params;
  params.fields = ucx::EndpointParams::kAddress | ucx::EndpointParams::kErrorMode |
                  ucx::EndpointParams::kErrorHandler;
  params.address = remote_.address.data();
  params.error_mode = ucx::EndpointParams::kPeer;
  params.on_error = UcxWorker::on_endpoint_error;
  params.on_error_context = worker_.get();
  uint64_t header = std::min<uint64_t>(worker_->max_header(), remote.max_header);
  if (remote.address.empty() || header < kBodySize) {
    return error(OH_ERR_NOT_VIABLE, "UCX takes headers of %llu bytes only, %zu are needed",
                 static_cast<unsigned long long>(header), kBodySize);
  }
  max_inline_ = std::min({asked_inline, header - kBodySize, uint64_t{UINT16_MAX}});
  SpinGuard guard(worker_->lock);
  ucx::Code code = worker_->library().ep_create(worker_->handle(), &params, &endpoint_);
  if (code == ucx::kOk) return {};
  endpoint_ = nullptr;
  const ucx::Library& library = worker_->library();
  Status failure = library.failure(code, ucx::symbol::ep_create, "the peer's address");
  if (code != ucx::kUnreachable) return failure;
  return Status(failure.code(),
                strf("%s; UCX %s is used here: does the peer use the same release, and the same "
                     "network devices (UCX_TLS, UCX_NET_DEVICES)?",
                     failure.text().c_str(), library.version_text().c_str()));
}

Status UcxChannel::probe(Deadline deadline) {
  size_t size = kBodySize + max_inline_;
  {
    SpinGuard guard(worker_->lock);
    probe_answer_ = 0;
    send_probe(kUcxProbe, size);
  }
  while (true) {
    bool any = worker_->progress();
    {
      SpinGuard guard(worker_->lock);
      if (probe_answer_ == size) return {};
      if (!why_broken_.empty()) return Status(OH_ERR_NOT_VIABLE, why_broken_);
    }
    if (deadline.passed()) {
      return error(OH_ERR_NOT_VIABLE,
                   "UCX has an address of the peer, but no answer comes back: is a firewall "
                   "between them, or does UCX take the wrong device (UCX_NET_DEVICES)?");
    }
    if (!any) sched_yield();
  }
}

void UcxChannel::send_probe(FrameType type, size_t size) {
  if (!endpoint_ || size > kBodySize + max_inline_) return;
  Note* note = take_note();
  UcxHead head{remote_.link, 0, cell_word(remote_.key, type, 0, 0)};
  std::memset(note->head(), 0, size);
  std::memcpy(note->head(), &head, sizeof(head));
  send_note(note, size, 0);
}

UcxHead UcxChannel::next_head(FrameType type, uint8_t flags) {
  return {remote_.link, messages_++, cell_word(remote_.key, type, flags, 0)};
}

size_t UcxChannel::write_head(uint8_t* to, const Frame& frame, bool is_short) {
  uint8_t flags = static_cast<uint8_t>(frame.flags | (is_short ? kShort : 0));
  UcxHead head = next_head(frame.type, flags);
  ++sent_;
  std::memcpy(to, &head, sizeof(head));
  if (is_short) {
    std::memcpy(to + sizeof(head), &frame.tag, sizeof(frame.tag));
    return kShortSize;
  }
  FrameBody body = body_of(frame);
  std::memcpy(to + sizeof(head), &body, sizeof(body));
  return kBodySize;
}

uint64_t UcxChannel::lent_part(uint64_t size) const {
  constexpr uint64_t kLine = 64;
  const uint64_t count = std::max<uint64_t>(1, (size + most_lent_ - 1) / most_lent_);
  return std::min(most_lent_, ((size + count - 1) / count + kLine - 1) & ~(kLine - 1));
}

std::shared_ptr<Flight> UcxChannel::lend(const Frame& frame) {
  SpinGuard guard(worker_->lock);
  if (outstanding_ > kMostOutstanding) return nullptr;
  send_pack();
  std::shared_ptr<Flight> flight = std::move(spare_);
  if (flight) {
    flight->over.store(false, std::memory_order_relaxed);
  } else {
    flight = std::make_shared<Flight>(*worker_, ucx::symbol::am_send);
  }
  if (!endpoint_ || !why_broken_.empty()) {
    return begin(std::move(flight), reinterpret_cast<void*>(intptr_t{ucx::kCanceled}));
  }
  write_head(flight->head, frame, /*is_short=*/false);
  const Sending what{.header = flight->head,
                     .header_size = kBodySize,
                     .payload = {frame.payload, frame.payload_size},
                     .asked = frame.type == FrameType::kData && !frame.early};
  void* pointer = send(what, on_flight_over, flight.get());
  // It has made a copy.
  if (!pointer) spare_ = flight;
  return begin(std::move(flight), pointer);
}

// After it was handed to UCX, which may have it still.
std::shared_ptr<Flight> UcxChannel::begin(std::shared_ptr<Flight> flight,
                                          ucx::StatusPointer pointer) {
  if (pointer && !ucx::is_error(pointer)) {
    flight->self = flight;
    flight->worker.note_held(1);
  } else {
    flight->code = ucx::code_of(pointer);
    flight->over.store(true, std::memory_order_release);
  }
  return flight;
}

// Nothing, a request, or a code, of which the link is broken.
ucx::StatusPointer UcxChannel::send(const Sending& what, void (*done)(void*, ucx::Code, void*),
                                    void* context) {
  ucx::RequestParam param;
  param.attributes =
      ucx::RequestParam::kCallback | ucx::RequestParam::kUserData | ucx::RequestParam::kMemoryType;
  param.callback.send = done;
  param.user_data = context;
  // Only what its receiver has asked for may wait there to be fetched.
  if (!what.asked) {
    param.attributes |= ucx::RequestParam::kFlags;
    param.flags = ucx::kSendEager;
  }
  if (what.registration) {
    param.attributes |= ucx::RequestParam::kMemory;
    param.memory = static_cast<ucx::Memory>(what.registration);
  }
  ucx::StatusPointer pointer =
      worker_->library().am_send(endpoint_, kAmId, what.header, what.header_size,
                                 what.payload.data(), what.payload.size(), &param);
  if (ucx::is_error(pointer)) {
    break_off(worker_->library().failure(ucx::code_of(pointer), ucx::symbol::am_send, "").text());
  }
  return pointer;
}

// Its header, and as much of its buffer.
void UcxChannel::send_note(Note* note, size_t header_size, size_t payload_size) {
  note->size = kNoteCost + header_size;
  const Sending what{.header = note->head(),
                     .header_size = header_size,
                     .payload = {note->buffer.data, payload_size},
                     .registration = note->buffer.registration};
  release(note, send(what, on_note_sent, note));
}

UcxChannel::Note* UcxChannel::take_note() {
  if (free_notes_.empty()) {
    notes_.push_back(std::make_unique<Note>(this, kBodySize + max_inline_));
    return notes_.back().get();
  }
  Note* note = free_notes_.back();
  free_notes_.pop_back();
  return note;
}

// After it was handed to UCX: free again, or when UCX is through with it.
void UcxChannel::release(Note* note, ucx::StatusPointer pointer) {
  if (pointer && !ucx::is_error(pointer)) {
    note->flying = true;
    worker_->note_held(1);
    outstanding_ += note->size;
    return;
  }
  if (note->buffer.data) {
    --buffers_;
    worker_->pool().give(std::exchange(note->buffer, {}));
    worker_->let_next_go_on();
  }
  free_notes_.push_back(note);
}

void UcxChannel::on_note_sent(void* request, ucx::Code code, void* context) {
  auto* note = static_cast<Note*>(context);
  UcxChannel* channel = note->channel;
  const ucx::Library& library = note->worker->library();
  library.request_free(request);
  note->worker->note_held(-1);
  if (!channel) {
    if (note->buffer.data) {
      note->worker->pool().give(note->buffer);
      note->worker->let_next_go_on();
    }
    delete note;
    return;
  }
  note->flying = false;
  channel->outstanding_ -= note->size;
  channel->release(note, nullptr);
  if (code != ucx::kOk) {
    channel->break_off(library.failure(code, ucx::symbol::am_send, "").text());
  }
}

void UcxChannel::on_flight_over(void* request, ucx::Code code, void* context) {
  std::shared_ptr<Flight> flight = std::move(static_cast<Flight*>(context)->self);
  flight->worker.library().request_free(request);
  flight->code = code;
  flight->over.store(true, std::memory_order_release);
  flight->worker.note_held(-1);
  flight->worker.note_arrival();
}

void UcxChannel::break_off(const std::string& why) {
  if (why_broken_.empty()) why_broken_ = why;
  is_broken_.store(true, std::memory_order_release);
  worker_->note_broken();
}

void UcxChannel::failed(ucx::Code code) {
  break_off(strf("UCX: %s (%d)", worker_->library().status_string(code), code));
}

Status UcxChannel::broken() {
  if (!is_broken_.load(std::memory_order_acquire)) return {};
  SpinGuard guard(worker_->lock);
  return Status(OH_ERR_PEER_LOST, why_broken_);
}

Status UcxChannel::broken_by(const Flight& flight) {
  {
    SpinGuard guard(worker_->lock);
    break_off(worker_->library().failure(flight.code, flight.call, "").text());
  }
  return broken();
}

bool UcxChannel::wait_for(void* request, Deadline deadline, const std::function<bool()>& there) {
  for (bool gone = false;; gone = !there()) {
    bool any = worker_->progress();
    {
      SpinGuard guard(worker_->lock);
      if (worker_->library().request_check(request) != ucx::kInProgress) {
        worker_->library().request_free(request);
        return true;
      }
      // UCX ends nothing on a link that it has given up, until it is closed.
      if (gone || deadline.passed() || (endpoint_ && !why_broken_.empty())) {
        worker_->library().request_free(request);
        return false;
      }
    }
    if (!any) sched_yield();
  }
}

bool UcxChannel::flush(Deadline deadline, const std::function<bool()>& there) {
  void* request = nullptr;
  {
    SpinGuard guard(worker_->lock);
    if (!endpoint_ || !why_broken_.empty()) return false;
    ucx::RequestParam param;
    request = worker_->library().ep_flush(endpoint_, &param);
  }
  if (!request || ucx::is_error(request)) return !request;
  return wait_for(request, deadline, there);
}

void UcxChannel::disconnect() {
  void* request = nullptr;
  {
    SpinGuard guard(worker_->lock);
    let_go_of_pack();
    leave();
    if (!endpoint_) return;
    request = worker_->close(std::exchange(endpoint_, nullptr), has_heard_);
  }
  if (request) (void)wait_for(request, Deadline::after(kCloseTime), [] { return true; });
}

}  // namespace oh
