// SPDX-License-Identifier: Apache-2.0
#include "requests.h"

#include <algorithm>

namespace oh::ucx::faulty {

Requests& Requests::instance() {
  static auto* const only = new Requests;  // outlives every thread
  return *only;
}

void* Requests::add(const Owner& owner, const Strike& strike) {
  std::lock_guard lock(mutex_);
  all_.push_back(std::make_unique<Request>(
      Request{owner.worker, owner.endpoint, strike, *owner.param, false, false}));
  return all_.back().get();
}

// Completes the matching requests with `code`, or each with its own.
template <typename Condition>
void Requests::end(Condition condition, std::optional<Code> code) {
  std::vector<Request*> ending;
  {
    std::lock_guard lock(mutex_);
    for (std::unique_ptr<Request>& request : all_) {
      if (request->ended || !condition(*request)) continue;
      request->ended = true;
      if (code) request->strike.code = *code;
      ending.push_back(request.get());
    }
  }
  for (Request* request : ending) {
    const RequestParam param = request->param;
    const Code with = request->strike.code;
    const bool is_receive = !request->endpoint;
    const bool released = request->released;
    // The callback releases the request.
    if (param.attributes & RequestParam::kCallback) {
      is_receive ? param.callback.receive(request, with, 0, param.user_data)
                 : param.callback.send(request, with, param.user_data);
    }
    if (released) (void)release(request);
  }
}

void Requests::end_due(Worker worker) {
  end(
      [worker](const Request& request) {
        return request.worker == worker && request.strike.when == When::kLater;
      },
      std::nullopt);
}

void Requests::cancel(Worker worker, Endpoint endpoint) {
  end(
      [&](const Request& request) {
        const bool its =
            request.endpoint == endpoint || (!request.endpoint && request.worker == worker);
        return its && request.strike.when != When::kLast;
      },
      kCanceled);
}

void Requests::cancel_last(Worker worker) {
  end([worker](const Request& request) { return request.worker == worker; }, kCanceled);
}

bool Requests::check(void* request, Code* code) {
  std::lock_guard lock(mutex_);
  for (const std::unique_ptr<Request>& one : all_) {
    if (one.get() != request) continue;
    *code = one->ended ? one->strike.code : kInProgress;
    return true;
  }
  return false;
}

// A request that is still in flight is freed on completion.
bool Requests::release(void* request) {
  std::lock_guard lock(mutex_);
  auto found =
      std::find_if(all_.begin(), all_.end(), [&](const auto& one) { return one.get() == request; });
  if (found == all_.end()) return false;
  (*found)->released = true;
  if ((*found)->ended) all_.erase(found);
  return true;
}

size_t Requests::count() {
  std::lock_guard lock(mutex_);
  return static_cast<size_t>(std::count_if(all_.begin(), all_.end(),
                                           [](const auto& request) { return !request->released; }));
}

}  // namespace oh::ucx::faulty
