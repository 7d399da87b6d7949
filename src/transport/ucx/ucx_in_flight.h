// SPDX-License-Identifier: Apache-2.0
//
// InFlight: a user buffer that UCX has in flight: a zero-copy send, a part that is fetched, or a
// flush. Its owner polls is_over(); until then the buffer must stay as it is.
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

  // After it was given to UCX, which may have it still. `pointer`: what UCX's call returned.
  static std::shared_ptr<InFlight> begin(std::shared_ptr<InFlight> in_flight,
                                         ucx::StatusPointer pointer);
  // One that UCX is not given, since the link has ended.
  static std::shared_ptr<InFlight> cancelled(std::shared_ptr<InFlight> in_flight);
  // UCX's callbacks; the context is the InFlight.
  static void on_over(void* request, ucx::Code code, void* context);
  static void on_received(void* request, ucx::Code code, size_t size, void* context);

  UcxWorker& worker;
  const char* call;               // of UCX
  std::atomic<bool> over{false};  // written once, after `code`
  ucx::Code code = ucx::kOk;
  uint8_t head[kUcxBodySize];
  std::shared_ptr<InFlight> self;  // while UCX has it
};

}  // namespace oh
