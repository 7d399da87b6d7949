// SPDX-License-Identifier: Apache-2.0
//
// InFlight: an operation that UCX has in flight: a zero-copy send, a fetch, or a flush. Its owner
// polls is_over(); until then the user's buffer must not be changed or freed.
//
// Threading: is_over(): any thread. `code` may be read afterwards. The rest is guarded by the
// worker's lock, under which UCX calls on_over().
#pragma once

#include <atomic>
#include <memory>

#include "transport/ucx/ucx_head.h"
#include "transport/ucx/ucx_worker.h"

namespace oh {

struct InFlight {
  InFlight(UcxWorker& of, const char* by) : worker(of), call(by) {}
  bool is_over() const { return over.load(std::memory_order_acquire); }

  // Marks the operation as in flight after UCX's call, which returned `pointer`; as over if the
  // call has completed or failed.
  static std::shared_ptr<InFlight> begin(std::shared_ptr<InFlight> in_flight,
                                         ucx::StatusPointer pointer);
  // An operation that is over as cancelled, without a call of UCX: the link has ended.
  static std::shared_ptr<InFlight> cancelled(std::shared_ptr<InFlight> in_flight);
  // UCX's callbacks; the context is the InFlight.
  static void on_over(void* request, ucx::Code code, void* context);
  static void on_received(void* request, ucx::Code code, size_t size, void* context);

  UcxWorker& worker;
  const char* call;               // name of UCX's function
  std::atomic<bool> over{false};  // set after `code`
  ucx::Code code = ucx::kOk;
  uint8_t head[kUcxBodySize];
  std::shared_ptr<InFlight> self;  // while it is in flight
};

}  // namespace oh
