// SPDX-License-Identifier: Apache-2.0
#include "path/staging/landings.h"

#include "base/clock.h"

namespace oh {

uint8_t* Landings::place(Request& request, uint64_t length) {
  if (!request.on_device) return request.data;
  DeviceMemory& memory = request.device;
  // It may have one of a message that was withdrawn.
  if (!memory.bounce || memory.bounce_size < length) {
    memory.bounce.reset(new uint8_t[length]);
    memory.bounce_size = length;
  }
  return memory.bounce.get();
}

void Landings::add(Request* request) {
  request->phase = Phase::kDirect;
  landings_.push_back({.request = request, .word = {}});
  link_.host->count_polled(1);
}

bool Landings::progress() {
  // Ended ones are taken off here only, where no other thread looks at them.
  std::erase_if(landings_, [](const Landing& other) { return !other.request && !other.busy; });
  for (auto landing = landings_.begin(); landing != landings_.end(); ++landing) {
    if (!has_work(*landing)) continue;
    // Each in its turn: one that waits for earlier work must not block the others.
    landings_.splice(landings_.end(), landings_, landing);
    return step(*landing);
  }
  return false;
}

bool Landings::has_work(const Landing& landing) const {
  if (landing.busy || !landing.request) return false;
  if (!landing.flying) return true;
  // acquire: the device's bytes are in place.
  return landing.word.host->load(std::memory_order_acquire) == landing.value ||
         now_ns() - landing.looked > kAskForErrors;
}

bool Landings::step(Landing& landing) {
  if (landing.flying && landing.word.host->load(std::memory_order_acquire) == landing.value) {
    end(landing, {});
    return true;
  }
  After& after = landing.request->device.after;
  bool pending = after.pending();
  landing.busy = true;
  bool complete = false;
  Status status = link_.without_lock([&]() -> Status {
    if (landing.flying) {
      // A lost context writes no word. Other query errors do not mean that the copy failed.
      (void)link_.gpu->is_idle(landing.stream).ok();
      return link_.gpu->loss();
    }
    if (!pending) return start(landing);
    OH_ASSIGN_OR_RETURN(complete, after.is_complete());
    return {};
  });
  landing.busy = false;
  landing.looked = now_ns();
  if (!status.ok()) {
    end(landing, status);
  } else if (pending) {
    if (!complete) return false;
    after.reset();
  } else {
    if (landing.flying) return false;
    landing.flying = true;
  }
  return true;
}

Status Landings::start(Landing& landing) {
  OH_ASSIGN_OR_RETURN(landing.stream, link_.gpu->take_stream());
  OH_ASSIGN_OR_RETURN(landing.word, link_.gpu->take_word());
  landing.value = landing.word.host->load(std::memory_order_relaxed) + 1;
  const Request& request = *landing.request;
  Status status = link_.gpu->copy(landing.stream, reinterpret_cast<cuda::DevicePtr>(request.data),
                                  reinterpret_cast<cuda::DevicePtr>(request.device.bounce.get()),
                                  request.nbytes, nullptr, landing.word.device, landing.value);
  // Some of it may have been enqueued.
  if (!status.ok()) (void)link_.gpu->wait_idle(landing.stream, Deadline::after(kSecond));
  return status;
}

void Landings::end(Landing& landing, Status status) {
  if (landing.stream) link_.gpu->give_stream(landing.stream);
  if (landing.word.host) link_.gpu->give_word(landing.word);
  Request* request = std::exchange(landing.request, nullptr);
  request->device.bounce.reset();
  link_.host->count_polled(-1);
  if (status.ok()) link_.stats.count_received(request->path, request->nbytes);
  link_.finish(*request, std::move(status));
}

bool Landings::cancel(Request* request, const Status& status) {
  for (Landing& landing : landings_) {
    if (landing.request != request || landing.busy || landing.flying) continue;
    end(landing, status);
    return true;
  }
  return false;
}

bool Landings::fail_all(const Status& status) {
  bool copying = false;
  for (Landing& landing : landings_) {
    if (!landing.request) continue;
    if (landing.busy) {
      copying = true;
    } else if (!landing.flying) {
      end(landing, status);
    } else if (landing.word.host->load(std::memory_order_acquire) == landing.value) {
      end(landing, {});
    } else if (link_.gpu->is_lost()) {
      end(landing, link_.gpu->loss());
    } else {
      copying = true;
    }
  }
  std::erase_if(landings_, [](const Landing& other) { return !other.request && !other.busy; });
  return !copying;
}

}  // namespace oh
