// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_endpoint.h"

#include <sched.h>

#include <utility>

namespace oh {

Status UcxEndpoint::connect(const Bytes& address) {
  ucx::EndpointParams params;
  params.fields = ucx::EndpointParams::kAddress | ucx::EndpointParams::kErrorMode |
                  ucx::EndpointParams::kErrorHandler;
  params.address = address.data();
  params.error_mode = ucx::EndpointParams::kPeer;
  params.on_error = UcxWorker::on_endpoint_error;
  params.on_error_context = worker_.get();
  const ucx::Library& library = worker_->library();
  ucx::Code code = library.ep_create(worker_->handle(), &params, &handle_);
  if (code == ucx::kOk) return {};
  handle_ = nullptr;
  Status failure = library.failure(code, ucx::symbol::ep_create, "the peer's address");
  if (code != ucx::kUnreachable) return failure;
  return Status(failure.code(),
                strf("%s; UCX %s is used here: does the peer use the same release, and the same "
                     "network devices (UCX_TLS, UCX_NET_DEVICES)?",
                     failure.text().c_str(), library.version_text().c_str()));
}

void* UcxEndpoint::close() {
  if (!handle_) return nullptr;
  return worker_->close(std::exchange(handle_, nullptr), has_heard_);
}

void UcxEndpoint::break_off(const std::string& why) {
  if (why_broken_.empty()) why_broken_ = why;
  is_broken_.store(true, std::memory_order_release);
  worker_->note_broken();
}

ucx::StatusPointer UcxEndpoint::send(const Sending& what, void (*done)(void*, ucx::Code, void*),
                                     void* context) {
  ucx::RequestParam param;
  param.attributes =
      ucx::RequestParam::kCallback | ucx::RequestParam::kUserData | ucx::RequestParam::kMemoryType;
  param.callback.send = done;
  param.user_data = context;
  // Data in a rendezvous waits at the sender for the receiver's fetch, so only data that the
  // receiver requested may use one.
  if (!what.asked) {
    param.attributes |= ucx::RequestParam::kFlags;
    param.flags = ucx::kSendEager;
  }
  if (what.registration) {
    param.attributes |= ucx::RequestParam::kMemory;
    param.memory = static_cast<ucx::Memory>(what.registration);
  }
  ucx::StatusPointer pointer =
      worker_->library().am_send(handle_, kAmId, what.header, what.header_size, what.payload.data(),
                                 what.payload.size(), &param);
  if (ucx::is_error(pointer)) {
    break_off(worker_->library().failure(ucx::code_of(pointer), ucx::symbol::am_send, "").text());
  }
  return pointer;
}

Status UcxEndpoint::broken() {
  if (!is_broken_.load(std::memory_order_acquire)) return {};
  SpinGuard guard(worker_->lock);
  return Status(OH_ERR_PEER_LOST, why_broken_);
}

bool UcxEndpoint::wait_for(void* request, Deadline deadline, const std::function<bool()>& there) {
  for (bool gone = false;; gone = !there()) {
    bool any = worker_->progress();
    {
      SpinGuard guard(worker_->lock);
      if (worker_->library().request_check(request) != ucx::kInProgress) {
        worker_->library().request_free(request);
        return true;
      }
      // UCX completes no request of a failed endpoint until it is closed.
      if (gone || deadline.passed() || (handle_ && !why_broken_.empty())) {
        worker_->library().request_free(request);
        return false;
      }
    }
    if (!any) sched_yield();
  }
}

bool UcxEndpoint::flush(Deadline deadline, const std::function<bool()>& there) {
  void* request = nullptr;
  {
    SpinGuard guard(worker_->lock);
    if (!is_usable()) return false;
    ucx::RequestParam param;
    request = worker_->library().ep_flush(handle_, &param);
  }
  if (!request || ucx::is_error(request)) return !request;
  return wait_for(request, deadline, there);
}

}  // namespace oh
