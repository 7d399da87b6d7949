// SPDX-License-Identifier: Apache-2.0
#include "path/staging/bounce_copies.h"

namespace oh {

uint8_t* BounceCopies::place(Request& request, uint64_t length) {
  if (!request.on_device) return request.data;
  DeviceMemory& memory = request.device;
  // It may have a bounce buffer of a message that was withdrawn.
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
  // Ended copies are erased here only, where no other thread uses them.
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
  const bool copying = copy.ticket.is_open();
  if (copying && copy.ticket.is_done()) {
    end(copy, {});
    return true;
  }
  After& after = copy.request->device.after;
  bool pending = after.pending();
  copy.busy = true;
  bool complete = false;
  Status status = link_.without_lock([&]() -> Status {
    if (copying) return copy.ticket.check().status();
    if (!pending) return start(copy);
    OH_ASSIGN_OR_RETURN(complete, after.is_complete());
    return {};
  });
  copy.busy = false;
  if (!status.ok()) {
    end(copy, status);
  } else if (pending) {
    if (!complete) return false;
    after.reset();
  } else if (copying) {
    return false;
  }
  return true;
}

Status BounceCopies::start(BounceCopy& copy) {
  OH_ASSIGN_OR_RETURN(copy.ticket, CopyTicket::open(*link_.gpu));
  const Request& request = *copy.request;
  Status status = copy.ticket.copy(request.data, request.device.bounce.get(), request.nbytes,
                                   copy.ticket.next_value());
  if (!status.ok()) (void)copy.ticket.drain(Deadline::after(kSecond));
  return status;
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
      end(copy, {});
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
