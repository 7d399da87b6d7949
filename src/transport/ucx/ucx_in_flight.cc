// SPDX-License-Identifier: Apache-2.0
#include "transport/ucx/ucx_in_flight.h"

#include <utility>

namespace oh {

std::shared_ptr<InFlight> InFlight::begin(std::shared_ptr<InFlight> in_flight,
                                          ucx::StatusPointer pointer) {
  if (pointer && !ucx::is_error(pointer)) {
    in_flight->self = in_flight;
    in_flight->worker.note_held(1);
  } else {
    in_flight->code = ucx::code_of(pointer);
    in_flight->over.store(true, std::memory_order_release);
  }
  return in_flight;
}

std::shared_ptr<InFlight> InFlight::cancelled(std::shared_ptr<InFlight> in_flight) {
  return begin(std::move(in_flight), reinterpret_cast<void*>(intptr_t{ucx::kCanceled}));
}

void InFlight::on_over(void* request, ucx::Code code, void* context) {
  std::shared_ptr<InFlight> in_flight = std::move(static_cast<InFlight*>(context)->self);
  in_flight->worker.library().request_free(request);
  in_flight->code = code;
  in_flight->over.store(true, std::memory_order_release);
  in_flight->worker.note_held(-1);
  in_flight->worker.note_arrival();
}

void InFlight::on_received(void* request, ucx::Code code, size_t, void* context) {
  on_over(request, code, context);
}

}  // namespace oh
