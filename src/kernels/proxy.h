// SPDX-License-Identifier: Apache-2.0
//
// The stream domain on a link that kernels cannot use: a kernel submits a ticket to the host for
// each operation and waits for its answer. Each half of a lane has a ticket queue. So do the
// signals sent, each signal slot that kernels wait for, and the one-sided operations. No queue
// waits for another.
//
//   kernel, one block for each queue                 the host's progress thread
//   reserves an entry whose last ticket has ended
//   payload of a small send, fields, number ──────▶  takes tickets in the order of their numbers
//                                                    executes each in the host domain
//   ends; waits only for answers it needs ◀────────  payload of a small receive, fields, number
//
// A kernel that waits too long gives its ticket up: it writes `given_up`, then reads `taken`. The
// host writes `taken`, then reads `given_up`. Each side has a full fence in between. So the host
// never executes a ticket that the kernel gave up before it was taken: models/proxy_ticket.pml.
//
// Ticket numbers come from GPU memory, so a replayed graph gets new ones.
#pragma once

#include <cstdint>

#include "onehop/detail/lane.h"

namespace oh::kernels {

inline constexpr char kProxyKernel[] = "onehop_proxy";
inline constexpr unsigned kProxyThreads = 128;
inline constexpr uint32_t kMostProxied = 128;  // operations of a launch
inline constexpr uint32_t kTickets = 4;        // in flight, per queue
inline constexpr uint64_t kProxySmall = 16 * 1024;

// Queues: the sends of each lane, the receives of each lane, the signals sent, the waits for each
// signal slot, and all puts, gets and atomic operations.
inline constexpr uint32_t kProxyLanes = 2 * OH_LANES;
inline constexpr uint32_t kSignalQueue = kProxyLanes;
inline constexpr uint32_t kWaitQueues = kSignalQueue + 1;
inline constexpr uint32_t kMoveQueue = kWaitQueues + onehop::detail::kSignalSlots;
inline constexpr uint32_t kProxyQueues = kMoveQueue + 1;

// The remote place of a put, get or atomic operation: a region of the peer, as its owner identifies
// it, and an offset in it.
inline constexpr uint64_t kOfGet = uint64_t{1} << 63;
inline constexpr uint64_t kOfAdd = uint64_t{1} << 62;
inline constexpr uint64_t kOfCompareSwap = uint64_t{1} << 61;
struct ProxyPlace {
  uint64_t region;  // its index, with one of these flags; a put has none
  uint64_t version;
  uint64_t offset;
};

// Written by the kernel, in host memory.
struct alignas(64) Ticket {
  uint64_t data;        // device address; 0: the bytes are in the payload; signals: the slot;
                        // atomic operations: the operand
  uint64_t bytes;       // of the message or the receive buffer; signals: their count;
                        // kOfCompareSwap: the expected value
  uint64_t asked;       // size read on the device, if larger than the buffer; else 0
  uint64_t timeout_ns;  // counted from when the host takes the ticket
  uint64_t number;      // 1 + the ticket's number; written last
  ProxyPlace place;     // kMoveQueue only
};
static_assert(sizeof(Ticket) == 64, "one line");
// Written by the host.
struct alignas(64) TicketAnswer {
  uint64_t bytes;   // received; atomic operations: the previous value
  uint64_t fault;   // an oh_lane_fault
  uint64_t number;  // as in the ticket; written last
  uint64_t taken;   // as in the ticket that the host executes or refuses; written first
};
struct TicketQueue {
  Ticket tickets[kTickets];
  TicketAnswer answers[kTickets];
  // Written by kernels. An oh_lane_fault: a kernel gave up without an entry, or without the answer
  // to a ticket that the host had taken.
  alignas(64) uint64_t gave_up;
  uint64_t given_up[kTickets];  // 1 + the number of the ticket that its kernel gave up
};
struct ProxyPage {
  alignas(64) uint64_t abort;  // written by the host: it takes no more tickets
  TicketQueue queues[kProxyQueues];
};

// In GPU memory.
struct alignas(64) TicketCursor {
  uint64_t next;            // number of the next ticket
  uint64_t left[kTickets];  // 1 + the last number whose kernel is done with the entry
};

struct ProxyOp {
  uint64_t page;     // ProxyPage, as the GPU sees it
  uint64_t queue;    // TicketQueue
  uint64_t payload;  // kTickets times kProxySmall bytes; 0: the queue has none
  uint64_t cursor;   // TicketCursor
  uint64_t data;
  uint64_t bytes;
  uint64_t size_from;
  uint64_t size_to;  // gets the size received, or the previous value; 0 if the operation fails
  uint64_t timeout_ns;
  ProxyPlace place;  // of kMoveQueue
  uint32_t index;    // of the queue
  uint32_t block;    // of the grid; operations of one queue run in order in one block
};
static_assert(sizeof(ProxyOp) == 104, "arguments of kernels are small");

struct ProxyArgs {
  uint64_t count;
  ProxyOp ops[kMostProxied];
};
static_assert(sizeof(ProxyArgs) <= 32764);

// How many ns a kernel waits for the host beyond the operation's own timeout. The host ends the
// operation at its deadline, so this time only passes if the host does not respond. If the host has
// taken the ticket, the kernel waits once more as long.
inline constexpr uint64_t kHostIsGone = 10'000'000'000;

struct PageLimits {
  static constexpr uint32_t kLook = 64;  // polls; each one already reads host memory
  const ProxyPage* page;
  uint64_t limit;
  ONEHOP_PROTOCOL const uint64_t* abort() const { return &page->abort; }
  ONEHOP_PROTOCOL uint64_t timeout_ns() const { return limit; }
};
template <typename A>
using ProxyPatience = onehop::detail::BasicPatience<A, PageLimits>;

inline constexpr uint64_t kNoTicket = UINT64_MAX;

// Reserves a number whose entry is free. kNoTicket: the wait for it has timed out or was aborted.
template <typename A>
ONEHOP_PROTOCOL uint64_t take_number(const TicketQueue& queue, TicketCursor* cursor,
                                     ProxyPatience<A>& patience) {
  uint64_t number = A::load_relaxed(&cursor->next);
  while (true) {
    const uint64_t place = number % kTickets;
    const uint64_t before = number < kTickets ? 0 : number - kTickets + 1;
    // Acquire: neither the host nor the previous kernel accesses the entry any more.
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

// Waits for the answer to a ticket. False: it has given the ticket up, or the wait was aborted.
template <typename A>
ONEHOP_PROTOCOL bool await_answer(TicketQueue* queue, uint64_t number, ProxyPatience<A>& patience) {
  const uint64_t place = number % kTickets;
  const TicketAnswer* answer = &queue->answers[place];
  bool gives_up = false;
  // Acquire: the received bytes are in the payload or the buffer.
  while (A::load_acquire(&answer->number) != number + 1) {
    if (!patience.over()) continue;
    if (patience.fault != OH_LANE_TIMEOUT) return false;
    if (gives_up) {
      A::store_release(&queue->gave_up, patience.fault);
      return false;
    }
    gives_up = true;
    A::store_relaxed(&queue->given_up[place], number + 1);
    // Pairs with ProxyMemory::take(): either the host sees the ticket given up, or the kernel sees
    // it taken.
    A::full_fence();
    if (A::load_relaxed(&answer->taken) != number + 1) return false;
    patience.begin_again();
  }
  return true;
}

// Called by all threads of the group.
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
    // No ticket was submitted. The host sees `gave_up` and fails the half; on other queues it
    // reports an error.
    if (patience.fault == OH_LANE_TIMEOUT) A::store_release(&queue->gave_up, patience.fault);
  }
  number = group.share(number);
  if (number == kNoTicket) {
    if (op.size_to != 0 && group.leads()) {
      A::store_relaxed(reinterpret_cast<uint64_t*>(op.size_to), 0);
    }
    return;
  }
  const uint64_t place = number % kTickets;
  uint8_t* payload = reinterpret_cast<uint8_t*>(op.payload + place * kProxySmall);
  uint8_t* data = reinterpret_cast<uint8_t*>(op.data);
  if (sends && small) group.copy(payload, data, bytes);
  group.sync();
  uint64_t fault = OH_LANE_OK;
  uint64_t came = 0;
  // A small send, whose bytes are in the payload, and a signal do not wait: the stream goes on.
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
    // Orders the payload written by the whole group, too. Pairs with ProxyMemory::ticket().
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
  // Release: all reads of the entry have ended. Pairs with take_number().
  A::store_release(&cursor->left[place], number + 1);
}

}  // namespace oh::kernels
