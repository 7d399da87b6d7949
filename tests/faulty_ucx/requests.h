// SPDX-License-Identifier: Apache-2.0
//
// Requests that UCX never sees: they end with an error, or not at all.
//
// Threading: any thread; callbacks are called by the thread that ends a request, without our mutex.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "rules.h"

namespace oh::ucx::faulty {

// What a request belongs to, and whom it tells.
struct Owner {
  Worker worker = nullptr;
  Endpoint endpoint = nullptr;  // null: a receive
  const RequestParam* param = nullptr;
};

class Requests {
 public:
  static Requests& instance();

  void* add(const Owner& owner, const Strike& strike);
  // Those for later, of this worker.
  void end_due(Worker worker);
  // The sends of this endpoint, and the receives of its worker: whose they are is not known here.
  void cancel(Worker worker, Endpoint endpoint);
  // All that are left of a worker that is about to be destroyed.
  void cancel_last(Worker worker);
  // False: not one of ours.
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
