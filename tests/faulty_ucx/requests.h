// SPDX-License-Identifier: Apache-2.0
//
// Requests that UCX never sees: they complete with an error, or never.
//
// Threading: any thread; the thread that completes a request calls its callback, without the mutex.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "rules.h"

namespace oh::ucx::faulty {

// The worker and endpoint of a request, and its completion callback.
struct Owner {
  Worker worker = nullptr;
  Endpoint endpoint = nullptr;  // null: a receive
  const RequestParam* param = nullptr;
};

class Requests {
 public:
  static Requests& instance();

  void* add(const Owner& owner, const Strike& strike);
  // Completes the requests of this worker that a `later` rule began.
  void end_due(Worker worker);
  // Cancels the sends of this endpoint and all receives of its worker: a receive does not record
  // its endpoint.
  void cancel(Worker worker, Endpoint endpoint);
  // Cancels all remaining requests of a worker that is about to be destroyed.
  void cancel_last(Worker worker);
  // False: the request belongs to the real library.
  bool check(void* request, Code* code);
  bool release(void* request);
  size_t count();

 private:
  struct Request {
    Worker worker;
    Endpoint endpoint;
    Strike strike;
    RequestParam param;
    bool ended = false;
    bool released = false;
  };
  template <typename Condition>
  void end(Condition condition, std::optional<Code> code);

  std::mutex mutex_;
  std::vector<std::unique_ptr<Request>> all_;
};

}  // namespace oh::ucx::faulty
