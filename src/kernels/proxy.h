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
// for, what is put and got.
inline constexpr uint32_t kProxyLanes = 2 * OH_LANES;
inline constexpr uint32_t kSignalQueue = kProxyLanes;
inline constexpr uint32_t kWaitQueues = kSignalQueue + 1;
inline constexpr uint32_t kMoveQueue = kWaitQueues + onehop::detail::kSignalSlots;
inline constexpr uint32_t kProxyQueues = kMoveQueue + 1;

// Where a put goes, or a get comes from: a region of the peer's as its owner names it, and where in
// that.
inline constexpr uint64_t kOfGet = uint64_t{1} << 63;
struct ProxyPlace {
  uint64_t region;  // its index, with kOfGet
  uint64_t version;
  uint64_t offset;
};

// By the kernel, 64 bytes in host memory.
struct alignas(64) Ticket {
  uint64_t data;        // device address; 0: the bytes are in the payload; of signals: the slot
  uint64_t bytes;       // of the message, or of the receive's memory; of signals: their count
  uint64_t asked;       // the size that was read on the device, where it is more than the buffer
  uint64_t timeout_ns;  // from when the host has it
  uint64_t number;      // 1 + its own, behind the rest
  ProxyPlace place;     // of a put or get
};
static_assert(sizeof(Ticket) == 64, "one line");
// By the host.
struct alignas(64) TicketAnswer {
  uint64_t bytes;   // that came
  uint64_t fault;   // an oh_lane_fault
  uint64_t number;  // as the ticket's, behind the rest
};
struct TicketQueue {
  Ticket tickets[kTickets];
  TicketAnswer answers[kTickets];
  alignas(64) uint64_t gave_up;  // by a kernel: the oh_lane_fault with which it went on by itself
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
  ProxyPlace place;  // of a put or get
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
// operation at that deadline: only when the host does not come.
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
    const TicketAnswer* answer = &queue->answers[place];
    bool there = true;
    // Acquire: what came is in the payload, or in place.
    while (waits && there && A::load_acquire(&answer->number) != number + 1) {
      there = !patience.over();
    }
    if (there && waits) {
      fault = A::load_relaxed(&answer->fault);
      came = A::load_relaxed(&answer->bytes);
    }
    if (!there) fault = patience.fault;
    if (fault == OH_LANE_TIMEOUT && !there) A::store_release(&queue->gave_up, fault);
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
