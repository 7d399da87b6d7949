// SPDX-License-Identifier: Apache-2.0
#include "path/staging/bounce_copies.h"

#include <utility>

namespace oh {

uint8_t* BounceCopies::place(Request& request, uint64_t length) {
  if (!request.on_device) return request.data;
  DeviceMemory& memory = request.device;
  // The request may still have the bounce buffer of a message that was withdrawn.
  if (!memory.bounce || memory.bounce_size < length) {
    memory.bounce.reset(new uint8_t[length]);
    memory.bounce_size = length;
  }
  return memory.bounce.get();
}

void BounceCopies::add(Request* request) {
  request->phase = Phase::kDirect;
  copies_.push_back({.request = request});
  link_.count_polled(1);
}

bool BounceCopies::progress() {
  // Erase ended copies here, where no other thread uses them.
  std::erase_if(copies_, [](const BounceCopy& other) { return !other.request && !other.busy; });
  for (auto copy = copies_.begin(); copy != copies_.end(); ++copy) {
    if (!has_work(*copy)) continue;
    // Copies take turns: one that waits for earlier work must not block the others.
    copies_.splice(copies_.end(), copies_, copy);
    return step(*copy);
  }
  return false;
}

bool BounceCopies::has_work(const BounceCopy& copy) const {
  if (copy.busy || !copy.request) return false;
  return copy.ticket.is_done() || copy.ticket.is_late();
}

bool BounceCopies::step(BounceCopy& copy) {
  if (copy.ticket.is_open()) return copy.ticket.is_done() ? end_copied(copy) : check(copy);
  return copy.request->device.after.pending() ? ask_producer(copy) : start(copy);
}

bool BounceCopies::end_copied(BounceCopy& copy) {
  end(copy, std::exchange(copy.failure, Status()));
  return true;
}

// Queries the stream. After a failure the part that was enqueued is over when the stream is idle.
bool BounceCopies::check(BounceCopy& copy) {
  copy.busy = true;
  Result<bool> idle = link_.without_lock([&] { return copy.ticket.check(); });
  copy.busy = false;
  if (idle.ok() && (copy.failure.ok() || !*idle)) return false;
  copy.ticket.write_off();
  if (!idle.ok()) copy.failure = idle.status();
  return end_copied(copy);
}

bool BounceCopies::ask_producer(BounceCopy& copy) {
  After& after = copy.request->device.after;
  copy.busy = true;
  Result<bool> complete = link_.without_lock([&] { return after.is_complete(); });
  copy.busy = false;
  if (!complete.ok()) end(copy, complete.status());
  if (!complete.ok() || !*complete) return !complete.ok();
  after.reset();
  return true;
}

bool BounceCopies::start(BounceCopy& copy) {
  copy.busy = true;
  CopyTicket ticket;
  const Status status = link_.without_lock([&]() -> Status {
    OH_ASSIGN_OR_RETURN(ticket, CopyTicket::open(*link_.gpu));
    const Request& request = *copy.request;
    return ticket.copy(request.data, request.device.bounce.get(), request.nbytes,
                       ticket.next_value());
  });
  copy.busy = false;
  copy.ticket = std::move(ticket);
  if (!status.ok() && !copy.ticket.is_open()) {
    end(copy, status);
  } else {
    copy.failure = status;  // completes once the engine has finished the enqueued part
  }
  return true;
}

void BounceCopies::end(BounceCopy& copy, Status status) {
  copy.ticket = {};
  Request* request = std::exchange(copy.request, nullptr);
  request->device.bounce.reset();
  link_.count_polled(-1);
  if (status.ok() && !request->internal) {
    link_.stats.count(MetricOp::kRecv, request->path, request->nbytes);
  }
  link_.finish(*request, std::move(status));
}

bool BounceCopies::cancel(Request* request, const Status& status) {
  for (BounceCopy& copy : copies_) {
    if (copy.request != request || copy.busy || copy.ticket.is_open()) continue;
    end(copy, status);
    return true;
  }
  return false;
}

bool BounceCopies::fail_all(const Status& status) {
  bool copying = false;
  for (BounceCopy& copy : copies_) {
    if (!copy.request) continue;
    if (copy.busy) {
      copying = true;
      continue;
    }
    if (!copy.ticket.is_open()) {
      end(copy, status);
    } else if (copy.ticket.is_done()) {
      (void)end_copied(copy);
    } else if (link_.gpu->is_lost()) {
      end(copy, link_.gpu->loss());
    } else {
      copying = true;
    }
  }
  std::erase_if(copies_, [](const BounceCopy& other) { return !other.request && !other.busy; });
  return !copying;
}

}  // namespace oh
