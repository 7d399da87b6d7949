// SPDX-License-Identifier: Apache-2.0
#include "path/staging/bounce_copies.h"

#include "base/clock.h"

namespace oh {

uint8_t* BounceCopies::place(Request& request, uint64_t length) {
  if (!request.on_device) return request.data;
  DeviceMemory& memory = request.device;
  // It may have one of a message that was withdrawn.
  if (!memory.bounce || memory.bounce_size < length) {
    memory.bounce.reset(new uint8_t[length]);
    memory.bounce_size = length;
  }
  return memory.bounce.get();
}

void BounceCopies::add(Request* request) {
  request->phase = Phase::kDirect;
  copies_.push_back({.request = request, .word = {}});
  link_.host->count_polled(1);
}

bool BounceCopies::progress() {
  // Ended ones are taken off here only, where no other thread looks at them.
  std::erase_if(copies_, [](const BounceCopy& other) { return !other.request && !other.busy; });
  for (auto copy = copies_.begin(); copy != copies_.end(); ++copy) {
    if (!has_work(*copy)) continue;
    // Each in its turn: one that waits for earlier work must not block the others.
    copies_.splice(copies_.end(), copies_, copy);
    return step(*copy);
  }
  return false;
}

bool BounceCopies::has_work(const BounceCopy& copy) const {
  if (copy.busy || !copy.request) return false;
  if (!copy.flying) return true;
  // acquire: the device's bytes are in place.
  return copy.word.host->load(std::memory_order_acquire) == copy.value ||
         now_ns() - copy.looked > kAskForErrors;
}

bool BounceCopies::step(BounceCopy& copy) {
  if (copy.flying && copy.word.host->load(std::memory_order_acquire) == copy.value) {
    end(copy, {});
    return true;
  }
  After& after = copy.request->device.after;
  bool pending = after.pending();
  copy.busy = true;
  bool complete = false;
  Status status = link_.without_lock([&]() -> Status {
    if (copy.flying) {
      // A lost context writes no word. Other query errors do not mean that the copy failed.
      (void)link_.gpu->is_idle(copy.stream).ok();
      return link_.gpu->loss();
    }
    if (!pending) return start(copy);
    OH_ASSIGN_OR_RETURN(complete, after.is_complete());
    return {};
  });
  copy.busy = false;
  copy.looked = now_ns();
  if (!status.ok()) {
    end(copy, status);
  } else if (pending) {
    if (!complete) return false;
    after.reset();
  } else {
    if (copy.flying) return false;
    copy.flying = true;
  }
  return true;
}

Status BounceCopies::start(BounceCopy& copy) {
  OH_ASSIGN_OR_RETURN(copy.stream, link_.gpu->take_stream());
  OH_ASSIGN_OR_RETURN(copy.word, link_.gpu->take_word());
  copy.value = copy.word.host->load(std::memory_order_relaxed) + 1;
  const Request& request = *copy.request;
  Status status = link_.gpu->copy(copy.stream, reinterpret_cast<cuda::DevicePtr>(request.data),
                                  reinterpret_cast<cuda::DevicePtr>(request.device.bounce.get()),
                                  request.nbytes, nullptr, copy.word.device, copy.value);
  // Some of it may have been enqueued.
  if (!status.ok()) (void)link_.gpu->wait_idle(copy.stream, Deadline::after(kSecond));
  return status;
}

void BounceCopies::end(BounceCopy& copy, Status status) {
  if (copy.stream) link_.gpu->give_stream(copy.stream);
  if (copy.word.host) link_.gpu->give_word(copy.word);
  Request* request = std::exchange(copy.request, nullptr);
  request->device.bounce.reset();
  link_.host->count_polled(-1);
  if (status.ok()) link_.stats.count_received(request->path, request->nbytes);
  link_.finish(*request, std::move(status));
}

bool BounceCopies::cancel(Request* request, const Status& status) {
  for (BounceCopy& copy : copies_) {
    if (copy.request != request || copy.busy || copy.flying) continue;
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
    } else if (!copy.flying) {
      end(copy, status);
    } else if (copy.word.host->load(std::memory_order_acquire) == copy.value) {
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
