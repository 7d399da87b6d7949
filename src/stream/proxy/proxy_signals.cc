// SPDX-License-Identifier: Apache-2.0
#include "stream/proxy/proxy_signals.h"

#include "onehop/detail/host_atomics.h"
#include "stream/proxy/proxy_work.h"

namespace oh {

using kernels::kSignalQueue;
using kernels::kTickets;
using kernels::kWaitQueues;
using kernels::Ticket;
using onehop::detail::HostAtomics;

void ProxySignals::check_late(uint32_t queue, const char* what) {
  if (Status late = take_late_ticket(memory_, queue, what); !late.ok()) warned_ = std::move(late);
}

// A queue has few entries, so few messages are queued.
bool ProxySignals::serve_sends() {
  bool any = false;
  check_late(kSignalQueue, "a signal");
  while (const Ticket* ticket = memory_.ticket(kSignalQueue, next_)) {
    messages_.send_signal({ProxyMessage::Kind::kSignal,
                           static_cast<uint32_t>(HostAtomics::load_relaxed(&ticket->data)),
                           HostAtomics::load_relaxed(&ticket->bytes)},
                          next_++);
    any = true;
  }
  return any;
}

bool ProxySignals::serve_slot(uint32_t index, bool lost) {
  Slot& slot = slots_[index];
  bool any = false;
  check_late(kWaitQueues + index, "a wait for signals");
  while (const Ticket* ticket = memory_.ticket(kWaitQueues + index, slot.next)) {
    Wait& wait = slot.waits[slot.next % kTickets];
    if (wait.waits) break;
    wait = {.waits = true,
            .number = slot.next++,
            .count = HostAtomics::load_relaxed(&ticket->bytes),
            .deadline = deadline_of(*ticket)};
    if (!memory_.take(kWaitQueues + index, wait.number)) {
      end_wait(index, wait, OH_LANE_TIMEOUT, ProxyWork::kGivenUp);
    }
    any = true;
  }
  for (Wait& wait : slot.waits) {
    if (!wait.waits) continue;
    if (slot.arrived >= wait.count) {
      slot.arrived -= wait.count;
      end_wait(index, wait, OH_LANE_OK);
    } else if (lost) {
      end_wait(index, wait, OH_LANE_ABORTED, "the wait was ended, for the link is lost");
    } else if (now_ns() >= wait.deadline) {
      end_wait(index, wait, OH_LANE_TIMEOUT, ProxyWork::kTooLate);
    } else {
      continue;
    }
    any = true;
  }
  return any;
}

void ProxySignals::end_wait(uint32_t index, Wait& wait, uint64_t fault, const char* why) {
  if (fault != OH_LANE_OK) {
    warned_ = error(fault == OH_LANE_TIMEOUT ? OH_ERR_TIMEOUT : OH_ERR_CANCELLED,
                    "%llu signals on slot %u: %s", static_cast<unsigned long long>(wait.count),
                    index, why);
  }
  wait.waits = false;
  memory_.answer(kWaitQueues + index, wait.number, fault, 0);
}

}  // namespace oh
