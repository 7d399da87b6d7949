// SPDX-License-Identifier: Apache-2.0
//
// The stream domain over a link that kernels may not use: a kernel hands the host a ticket for each
// operation and waits for its answer. Each half of a lane has a queue of tickets, and so have the
// signals, each slot that is waited for, and the puts: none waits for another.
//
//   kernel, one block for each queue                 the host's progress thread
//   takes a place whose last ticket has ended
//   payload of a small send, fields, number ──────▶  takes them in the order of their numbers
//                                                    executes it in the host domain
//   leaves; waits only if it needs it  ◀───────────  payload of a small receive, fields, number
//
// A kernel that waits too long gives its ticket up: it says so and looks whether the host has taken
// it; the host says that it takes it and looks whether it was given up, with a full fence between
// at both sides. So what a kernel gave up untaken is not executed: models/proxy_ticket.pml.
//
// Numbers come from the memory of the GPU, so a graph that is replayed has new ones.
#pragma once

#include <cstdint>

#include "onehop/detail/lane.h"

namespace oh::kernels {

inline constexpr char kProxyKernel[] = "onehop_proxy";
inline constexpr unsigned kProxyThreads = 128;
inline constexpr uint32_t kMostProxied = 128;  // operations of a launch
inline constexpr uint32_t kTickets = 4;        // of one queue under way
inline constexpr uint64_t kProxySmall = 16 * 1024;

// Queues: what each lane sends, what each receives, what is signalled, each slot that is waited
// for, what is put, got, and changed by atomic operations.
inline constexpr uint32_t kProxyLanes = 2 * OH_LANES;
inline constexpr uint32_t kSignalQueue = kProxyLanes;
inline constexpr uint32_t kWaitQueues = kSignalQueue + 1;
inline constexpr uint32_t kMoveQueue = kWaitQueues + onehop::detail::kSignalSlots;
inline constexpr uint32_t kProxyQueues = kMoveQueue + 1;

// Where a put goes, a get comes from, or an atomic operation is: a region of the peer's as its
// owner names it, and where in that.
inline constexpr uint64_t kOfGet = uint64_t{1} << 63;
inline constexpr uint64_t kOfAdd = uint64_t{1} << 62;
inline constexpr uint64_t kOfCompareSwap = uint64_t{1} << 61;
struct ProxyPlace {
  uint64_t region;  // its index, with one of these; of a put none
  uint64_t version;
  uint64_t offset;
};

// By the kernel, 64 bytes in host memory.
struct alignas(64) Ticket {
  uint64_t data;        // device address; 0: the bytes are in the payload; of signals: the slot;
                        // of atomic operations: the value
  uint64_t bytes;       // of the message, or of the receive's memory; of signals: their count;
                        // of kOfCompareSwap: what is expected
  uint64_t asked;       // the size that was read on the device, where it is more than the buffer
  uint64_t timeout_ns;  // from when the host has it
  uint64_t number;      // 1 + its own, behind the rest
  ProxyPlace place;     // of kMoveQueue
};
static_assert(sizeof(Ticket) == 64, "one line");
// By the host.
struct alignas(64) TicketAnswer {
  uint64_t bytes;   // that came; of atomic operations: what was there
  uint64_t fault;   // an oh_lane_fault
  uint64_t number;  // as the ticket's, behind the rest
  uint64_t taken;   // number of the ticket that the host executes, or refuses; before the rest
};
struct TicketQueue {
  Ticket tickets[kTickets];
  TicketAnswer answers[kTickets];
  // By kernels. An oh_lane_fault: one went on without a place, or without the answer of a ticket
  // that the host had taken.
  alignas(64) uint64_t gave_up;
  uint64_t given_up[kTickets];  // number of the ticket whose kernel waits for it no longer
};
struct ProxyPage {
  alignas(64) uint64_t abort;  // by the host: it takes nothing any more
  TicketQueue queues[kProxyQueues];
};

// In the memory of the GPU.
struct alignas(64) TicketCursor {
  uint64_t next;            // number of the next ticket
  uint64_t left[kTickets];  // 1 + the number whose kernel is through with the place
};

struct ProxyOp {
  uint64_t page;     // ProxyPage, as the GPU sees it
  uint64_t queue;    // TicketQueue
  uint64_t payload;  // kTickets times kProxySmall bytes; 0: it has none
  uint64_t cursor;   // TicketCursor
  uint64_t data;
  uint64_t bytes;
  uint64_t size_from;
  uint64_t size_to;
  uint64_t timeout_ns;
  ProxyPlace place;  // of kMoveQueue
  uint32_t index;    // of the queue
  uint32_t block;    // of the grid; those of one queue follow each other in the same
};
static_assert(sizeof(ProxyOp) == 104, "arguments of kernels are small");

struct ProxyArgs {
  uint64_t count;
  ProxyOp ops[kMostProxied];
};
static_assert(sizeof(ProxyArgs) <= 32764);

// How much longer than an operation's own deadline a kernel waits for the host, which ends the
// operation at that deadline: only when the host does not come. Once more as long where it has
// come.
inline constexpr uint64_t kHostIsGone = 10'000'000'000;

struct PageLimits {
  static constexpr uint32_t kLook = 64;  // polls, which are of the host's memory themselves
  const ProxyPage* page;
  uint64_t limit;
  ONEHOP_PROTOCOL const uint64_t* abort() const { return &page->abort; }
  ONEHOP_PROTOCOL uint64_t timeout_ns() const { return limit; }
};
template <typename A>
using ProxyPatience = onehop::detail::BasicPatience<A, PageLimits>;

inline constexpr uint64_t kNoTicket = UINT64_MAX;

// A number whose place is free, for the caller alone; kNoTicket: the wait for it is over.
template <typename A>
ONEHOP_PROTOCOL uint64_t take_number(const TicketQueue& queue, TicketCursor* cursor,
                                     ProxyPatience<A>& patience) {
  uint64_t number = A::load_relaxed(&cursor->next);
  while (true) {
    const uint64_t place = number % kTickets;
    const uint64_t before = number < kTickets ? 0 : number - kTickets + 1;
    // Acquire: neither the host nor the kernel before is at the place any more.
    const bool free = A::load_acquire(&queue.answers[place].number) >= before &&
                      A::load_acquire(&cursor->left[place]) >= before;
    if (!free) {
      if (patience.over()) return kNoTicket;
      number = A::load_relaxed(&cursor->next);
      continue;
    }
    const uint64_t seen = A::compare_swap(&cursor->next, number, number + 1);
    if (seen == number) return number;
    number = seen;
  }
}

// Waits for the answer of a ticket. False: it has gone on without.
template <typename A>
ONEHOP_PROTOCOL bool await_answer(TicketQueue* queue, uint64_t number, ProxyPatience<A>& patience) {
  const uint64_t place = number % kTickets;
  const TicketAnswer* answer = &queue->answers[place];
  bool gives_up = false;
  // Acquire: what came is in the payload, or in place.
  while (A::load_acquire(&answer->number) != number + 1) {
    if (!patience.over()) continue;
    if (patience.fault != OH_LANE_TIMEOUT) return false;
    if (gives_up) {
      A::store_release(&queue->gave_up, patience.fault);
      return false;
    }
    gives_up = true;
    A::store_relaxed(&queue->given_up[place], number + 1);
    // Pairs with ProxyMemory::take(): either the host finds it given up, or we find it taken.
    A::full_fence();
    if (A::load_relaxed(&answer->taken) != number + 1) return false;
    patience.begin_again();
  }
  return true;
}

// By all threads of the group.
template <typename A, typename G>
ONEHOP_PROTOCOL void run_proxy(const ProxyOp& op, G& group) {
  const auto* page = reinterpret_cast<const ProxyPage*>(op.page);
  TicketQueue* queue = reinterpret_cast<TicketQueue*>(op.queue);
  TicketCursor* cursor = reinterpret_cast<TicketCursor*>(op.cursor);
  const bool sends = op.index < OH_LANES;
  uint64_t bytes = op.bytes;
  uint64_t asked = 0;
  if (op.size_from != 0) {
    bytes = A::load_relaxed(reinterpret_cast<const uint64_t*>(op.size_from));
    if (bytes > op.bytes) asked = bytes;
    if (bytes > op.bytes) bytes = op.bytes;
  }
  const bool small = op.payload != 0 && bytes <= kProxySmall;
  uint64_t number = kNoTicket;
  if (group.leads()) {
    ProxyPatience<A> patience{{page, op.timeout_ns}};
    number = take_number<A>(*queue, cursor, patience);
    // The host fails the half. Nothing was handed to it.
    if (patience.fault == OH_LANE_TIMEOUT) A::store_release(&queue->gave_up, patience.fault);
  }
  number = group.share(number);
  if (number == kNoTicket) return;
  const uint64_t place = number % kTickets;
  uint8_t* payload = reinterpret_cast<uint8_t*>(op.payload + place * kProxySmall);
  uint8_t* data = reinterpret_cast<uint8_t*>(op.data);
  if (sends && small) group.copy(payload, data, bytes);
  group.sync();
  uint64_t fault = OH_LANE_OK;
  uint64_t came = 0;
  // Its bytes are in the payload, or it has none: the stream goes on.
  const bool waits = !(sends && small) && op.index != kSignalQueue;
  if (group.leads()) {
    Ticket* ticket = &queue->tickets[place];
    A::store_relaxed(&ticket->data, small ? 0 : op.data);
    A::store_relaxed(&ticket->bytes, bytes);
    A::store_relaxed(&ticket->asked, asked);
    A::store_relaxed(&ticket->timeout_ns, op.timeout_ns);
    if (op.index == kMoveQueue) {
      A::store_relaxed(&ticket->place.region, op.place.region);
      A::store_relaxed(&ticket->place.version, op.place.version);
      A::store_relaxed(&ticket->place.offset, op.place.offset);
    }
    // The whole group's payload, too. Pairs with Proxy::take().
    A::fence();
    A::store_behind_fence(&ticket->number, number + 1);
    const bool never = op.timeout_ns > UINT64_MAX - kHostIsGone;
    ProxyPatience<A> patience{{page, never ? UINT64_MAX : op.timeout_ns + kHostIsGone}};
    if (waits && await_answer<A>(queue, number, patience)) {
      fault = A::load_relaxed(&queue->answers[place].fault);
      came = A::load_relaxed(&queue->answers[place].bytes);
    }
    if (patience.fault != OH_LANE_OK) fault = patience.fault;
  }
  fault = group.share(fault);
  came = group.share(came);
  if (!sends && small && fault == OH_LANE_OK && waits) group.copy(data, payload, came);
  group.sync();
  if (!group.leads()) return;
  if (op.size_to != 0) A::store_relaxed(reinterpret_cast<uint64_t*>(op.size_to), came);
  // Release: all reads of the place are over. Pairs with take_number().
  A::store_release(&cursor->left[place], number + 1);
}

}  // namespace oh::kernels
