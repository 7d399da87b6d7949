// SPDX-License-Identifier: Apache-2.0
//
// Signals of the stream domain by proxy, resets of its lanes, and the messages for both.
#include "base/clock.h"
#include "endpoint/endpoint.h"
#include "onehop/detail/host_atomics.h"
#include "stream/proxy/proxy.h"

namespace oh {

using kernels::kSignalQueue;
using kernels::kTickets;
using kernels::kWaitQueues;
using kernels::Ticket;
using onehop::detail::HostAtomics;
using onehop::detail::kSignalSlots;

namespace {
constexpr size_t kAtOnce = 64;
}

// ---- Messages ---------------------------------------------------------------------------------

void Proxy::say(Kind kind, uint32_t index, uint64_t value, uint64_t ticket) {
  Saying& saying = sayings_.emplace_back();
  Writer writer(saying.bytes);
  writer.u8(static_cast<uint8_t>(kind));
  writer.u32(index);
  writer.u64(value);
  saying.ticket = ticket;
}

// In their order. What a link that is lost leaves unsaid has nobody to hear it.
bool Proxy::speak(Endpoint& endpoint) {
  bool any = false;
  for (Saying& saying : sayings_) {
    if (saying.posted) continue;
    saying.request.kind = OpKind::kSend;
    saying.request.endpoint = &endpoint;
    saying.request.data = saying.bytes.data();
    saying.request.size = saying.bytes.size();
    saying.request.tag = kFirstTag + OH_LANES;
    Status status = link_.peer->operations().post_send(&saying.request);
    if (status.code() == OH_AGAIN) break;
    saying.posted = any = true;
    if (!status.ok()) saying.request.done.store(1, std::memory_order_relaxed);
  }
  while (!sayings_.empty() && sayings_.front().posted && sayings_.front().request.ended()) {
    if (uint64_t ticket = sayings_.front().ticket) answer(kSignalQueue, ticket - 1, OH_LANE_OK);
    sayings_.pop_front();
    any = true;
  }
  return any;
}

bool Proxy::hear(Endpoint& endpoint) {
  bool any = false;
  for (size_t i = 0; i < kAtOnce; ++i) {
    if (!hears_) {
      renew(ear_);
      ear_.kind = OpKind::kRecv;
      ear_.endpoint = &endpoint;
      ear_.data = hearing_;
      ear_.size = sizeof(hearing_);
      ear_.tag = kFirstTag + OH_LANES;
      if (!link_.peer->operations().post_recv(&ear_).ok()) return any;
      hears_ = true;
    }
    if (!ear_.ended()) return any;
    hears_ = false;
    if (!ear_.status.ok()) return any;
    any = true;
    Status status = heard({hearing_, ear_.nbytes});
    if (status.ok()) continue;
    link_.peer->operations().accuse(status);
    return any;
  }
  return any;
}

Status Proxy::heard(ByteView bytes) {
  Reader reader(bytes);
  const auto kind = static_cast<Kind>(reader.u8());
  const uint32_t index = reader.u32();
  const uint64_t value = reader.u64();
  if (reader.at_end() && kind == Kind::kSignal && index < kSignalSlots) {
    slots_[index].arrived += value;
    return {};
  }
  if (reader.at_end() && kind == Kind::kReset && index < OH_LANES) {
    reset_[index].heard = value;
    // At once: the next one may be right behind it.
    (void)move_reset(index);
    return {};
  }
  return error(OH_ERR_PROTOCOL, "%s sent a proxy's message of %zu bytes", link_.name.c_str(),
               bytes.size());
}

// ---- Signals ----------------------------------------------------------------------------------

// A kernel found no room for a ticket of signals or puts, or no host, until its wait was over.
void Proxy::look_for_loss(uint32_t queue) {
  uint64_t* gave_up = &memory_->queue(queue).gave_up;
  if (HostAtomics::load_acquire(gave_up) == OH_LANE_OK) return;
  HostAtomics::store_relaxed(gave_up, OH_LANE_OK);
  warned_ = error(OH_ERR_TIMEOUT, "%s was given up: the deadline passed before the host had it",
                  queue == kSignalQueue         ? "a signal"
                  : queue == kernels::kPutQueue ? "a put"
                                                : "a wait for signals");
}

// A signal is over when it is on its way: the kernel's places are few, so nothing piles up here.
bool Proxy::take_signals() {
  bool any = false;
  look_for_loss(kSignalQueue);
  while (const Ticket* next = ticket(kSignalQueue, next_signal_)) {
    const uint64_t number = next_signal_++;
    say(Kind::kSignal, static_cast<uint32_t>(HostAtomics::load_relaxed(&next->data)),
        HostAtomics::load_relaxed(&next->bytes), number + 1);
    any = true;
  }
  return any;
}

bool Proxy::serve_slot(uint32_t index) {
  Slot& slot = slots_[index];
  bool any = false;
  look_for_loss(kWaitQueues + index);
  while (const Ticket* next = ticket(kWaitQueues + index, slot.next)) {
    Wait& wait = slot.waits[slot.next % kTickets];
    if (wait.waits) break;
    wait = {.waits = true,
            .number = slot.next++,
            .count = HostAtomics::load_relaxed(&next->bytes),
            .deadline = deadline_of(*next)};
    any = true;
  }
  for (Wait& wait : slot.waits) {
    if (!wait.waits) continue;
    if (slot.arrived >= wait.count) {
      slot.arrived -= wait.count;
      end_wait(index, wait, OH_LANE_OK);
    } else if (lost_ || now_ns() >= wait.deadline) {
      end_wait(index, wait, lost_ ? OH_LANE_ABORTED : OH_LANE_TIMEOUT);
    } else {
      continue;
    }
    any = true;
  }
  return any;
}

void Proxy::end_wait(uint32_t index, Wait& wait, uint64_t fault) {
  if (fault != OH_LANE_OK) {
    const bool late = fault == OH_LANE_TIMEOUT;
    warned_ = error(late ? OH_ERR_TIMEOUT : OH_ERR_CANCELLED, "%llu signals on slot %u: %s",
                    static_cast<unsigned long long>(wait.count), index,
                    late ? kTooLate : "the wait was ended, for the link is lost");
  }
  wait.waits = false;
  answer(kWaitQueues + index, wait.number, fault);
}

// ---- Resets -----------------------------------------------------------------------------------

void Proxy::reset(uint32_t lane, uint64_t before) {
  MutexLock lock(mutex_);
  if (!reset_[lane].under_way && resets(lane) == before) reset_[lane].wanted = true;
  link_.my_bell->ring();
}

// What the lane has and what comes from now on is of the old epoch, and told to have been ended.
void Proxy::begin_reset(uint32_t lane) {
  Reset& reset = reset_[lane];
  reset.under_way = true;
  reset.wanted = reset.told = false;
  for (uint32_t queue : {lane, lane + OH_LANES}) {
    Half& half = halves_[queue];
    // What a kernel has handed in by now, too.
    if (is_used(queue)) take_all(queue);
    if (half.failed.ok()) {
      fail(queue, OH_ERR_CANCELLED, "it is being reset");
    } else if (!half.told && half.warned.ok()) {
      half.warned = half.failed;
    }
    half.told = true;
  }
}

bool Proxy::move_reset(uint32_t lane) {
  Reset& reset = reset_[lane];
  const bool begins = reset.wanted || reset.heard == reset.epoch + 1;
  if (!reset.under_way && !begins) return false;
  const uint32_t queues[2] = {lane, lane + OH_LANES};
  if (!reset.under_way) begin_reset(lane);
  if (!reset.told) {
    bool all = true;
    bool through = true;
    for (uint32_t queue : queues) {
      all = end_all(queue) && all;
      // Of a kernel that has not begun nothing is seen but its event.
      through = memory_->is_through(queue) && through;
    }
    if (!all || !through) return !all;
    // Behind all that was sent on the lane.
    say(Kind::kReset, lane, reset.epoch + 1);
    reset.told = true;
  }
  if (reset.heard != reset.epoch + 1) return false;
  // What they had sent is here by now, and nobody receives it any more.
  link_.peer->operations().discard(tag_of(lane));
  for (uint32_t queue : queues) {
    HostAtomics::store_relaxed(&memory_->queue(queue).gave_up, OH_LANE_OK);
    halves_[queue].failed = {};
    halves_[queue].told = false;
  }
  ++reset.epoch;
  reset.under_way = false;
  // release: pairs with resets().
  resets_[lane].fetch_add(1, std::memory_order_release);
  link_.my_bell->ring();
  return true;
}

}  // namespace oh
