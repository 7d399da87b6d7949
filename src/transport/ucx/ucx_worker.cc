// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_worker.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "transport/ucx/ucx_channel.h"

namespace oh {
namespace {
// Limit of UCX's progress steps per call of progress(): the calling thread has other work.
constexpr int kStepsAtOnce = 16;
// From UCX 1.14 on UCX can drop its reply to a peer's handshake.
constexpr unsigned kDropsReplies = 14;
}  // namespace

UcxWorker::UcxWorker(const UcxContext& context, const UcxPoolLimits& limits)
    : context_(context), pool_(context, limits, UcxChannel::kMaxPayload) {}

Result<std::shared_ptr<UcxWorker>> UcxWorker::create(const UcxContext& context,
                                                     const UcxPoolLimits& limits,
                                                     std::shared_ptr<UcxListener> listener) {
  std::shared_ptr<UcxWorker> worker(new UcxWorker(context, limits));
  worker->listener_ = std::move(listener);
  OH_RETURN_IF_ERROR(worker->start());
  return worker;
}

Status UcxWorker::start() {
  ucx::WorkerParams params;
  params.fields = ucx::WorkerParams::kThreadMode;
  params.thread_mode = ucx::kThreadSerialized;
  ucx::Code code = library().worker_create(context_.handle(), &params, &handle_);
  if (code == ucx::kNoResource || code == ucx::kNoMemory) {
    const Status failed = library().failure(code, ucx::symbol::worker_create, "");
    return error(failed.code(),
                 "%s; if /dev/shm is full, of which old releases take 5 MB for each endpoint: "
                 "enlarge it, or set UCX_TLS=^shm",
                 failed.text().c_str());
  }
  if (code != ucx::kOk) return library().failure(code, ucx::symbol::worker_create, "");

  ucx::WorkerAttributes attributes;
  attributes.fields = ucx::WorkerAttributes::kMaxAmHeader;
  code = library().worker_query(handle_, &attributes);
  if (code != ucx::kOk) return library().failure(code, ucx::symbol::worker_query, "");
  max_header_ = attributes.max_am_header;

  code = library().get_efd(handle_, &event_fd_);
  if (code != ucx::kOk) return library().failure(code, ucx::symbol::get_efd, "");

  ucx::AmHandler handler;
  handler.fields = ucx::AmHandler::kId | ucx::AmHandler::kFlags | ucx::AmHandler::kCallback |
                   ucx::AmHandler::kContext;
  handler.id = UcxEndpoint::kAmId;
  // Not UCP_AM_FLAG_PERSISTENT_DATA: over tcp it costs more than a copy, up to three times as much.
  handler.flags = ucx::AmHandler::kWholeMessage;
  handler.callback = on_message;
  handler.context = this;
  code = library().set_am_handler(handle_, &handler);
  if (code != ucx::kOk) return library().failure(code, ucx::symbol::set_am_handler, "");
  return {};
}

UcxWorker::~UcxWorker() {
  if (!handle_) return;
  // Make no progress here: a handshake must not be handled any more, see close().
  while (!unanswered_.empty()) drop_unanswered(unanswered_.back());
  library().worker_destroy(handle_);
}

void* UcxWorker::close(ucx::Endpoint endpoint, bool has_heard) {
  if (has_heard || library().minor >= kDropsReplies) return force_close(endpoint);
  unanswered_.push_back(endpoint);
  return nullptr;
}

void* UcxWorker::force_close(ucx::Endpoint endpoint) {
  ucx::RequestParam param;
  param.attributes = ucx::RequestParam::kFlags;
  param.flags = ucx::kCloseForce;
  void* request = library().ep_close(endpoint, &param);
  return ucx::is_error(request) ? nullptr : request;
}

// Closes the endpoint if it is one that close() kept open.
void UcxWorker::drop_unanswered(ucx::Endpoint endpoint) {
  if (std::erase(unanswered_, endpoint) == 0) return;
  if (void* request = force_close(endpoint)) library().request_free(request);
}

// Called by progress(), with the lock held.
void UcxWorker::on_endpoint_error(void* self, ucx::Endpoint endpoint, ucx::Code code) {
  auto* worker = static_cast<UcxWorker*>(self);
  for (UcxChannel* channel : worker->channels_) {
    if (channel && channel->uses(endpoint)) return channel->failed(code);
  }
  worker->drop_unanswered(endpoint);
}

Result<Bytes> UcxWorker::address(bool network) {
  ucx::WorkerAttributes attributes;
  attributes.fields = ucx::WorkerAttributes::kAddress | ucx::WorkerAttributes::kAddressFlags;
  attributes.address_flags = network ? ucx::kNetworkOnly : 0;
  SpinGuard guard(lock);
  ucx::Code code = library().worker_query(handle_, &attributes);
  if (code != ucx::kOk) return library().failure(code, ucx::symbol::worker_query, "the address");
  const auto* bytes = reinterpret_cast<const uint8_t*>(attributes.address);
  Bytes address(bytes, bytes + attributes.address_length);
  library().release_address(handle_, attributes.address);
  return address;
}

bool UcxWorker::progress() {
  if (!lock.try_lock()) return false;
  rounds_.store(rounds() + 1, std::memory_order_relaxed);
  bool any = false;
  for (int step = 0; step < kStepsAtOnce && !arrived_ && library().progress(handle_); ++step) {
    any = true;
  }
  bool arrived = std::exchange(arrived_, false);
  lock.unlock();
  if (arrived) listener_->on_arrival();
  return any || arrived;
}

bool UcxWorker::arm() {
  SpinGuard guard(lock);
  return library().arm(handle_) == ucx::kOk;
}

uint32_t UcxWorker::add(UcxChannel* channel) {
  SpinGuard guard(lock);
  auto free = std::find(channels_.begin(), channels_.end(), nullptr);
  auto link = static_cast<uint32_t>(free - channels_.begin());
  if (free == channels_.end()) {
    channels_.push_back(channel);
  } else {
    *free = channel;
  }
  return link;
}

void UcxWorker::remove(uint32_t link) {
  SpinGuard guard(lock);
  channels_[link] = nullptr;
}

// Called by progress(), with the lock held.
ucx::Code UcxWorker::on_message(void* self, const void* header, size_t header_size, void* data,
                                size_t size, const ucx::AmReceived* received) {
  auto* worker = static_cast<UcxWorker*>(self);
  UcxHead head;
  // Any process may have sent this: check everything.
  if (header_size < sizeof(head)) return ucx::kOk;
  std::memcpy(&head, header, sizeof(head));
  UcxChannel* channel =
      head.link < worker->channels_.size() ? worker->channels_[head.link] : nullptr;
  if (!channel) return ucx::kOk;
  return channel->arrived(head, {static_cast<const uint8_t*>(header), header_size}, data, size,
                          received->attributes);
}

}  // namespace oh
