// SPDX-License-Identifier: Apache-2.0
#include "path/staging/crossings.h"

#include <algorithm>

#include "base/clock.h"
#include "base/fault.h"

namespace oh {
namespace {
// In one call, at those that hold nothing: there may be thousands.
constexpr size_t kLooksAtIdle = 16;
}  // namespace

Crossing& Crossings::begin(Request* request, StagingDirection direction, uint64_t op,
                           uint64_t length) {
  List& idle = idle_[static_cast<size_t>(direction)];
  request->crossing = idle.emplace_back(std::make_shared<Crossing>());
  Crossing& crossing = *request->crossing;
  crossing.at = std::prev(idle.end());
  crossing.direction = direction;
  crossing.request = request;
  crossing.op = op;
  crossing.length = length;
  link_.host->count_polled(1);
  crossing.counted = true;
  link_.wake_me = true;  // who sleeps is to poll
  return crossing;
}

ByteView Crossings::filled(Request& request, uint64_t limit) {
  Crossing& crossing = *request.crossing;
  release_until(crossing, request.moved);
  if (crossing.chunks.empty()) return {};
  const Crossing::Chunk& chunk = crossing.chunks.front();
  if (request.moved < chunk.begin || chunk.begin + chunk.size > crossing.copied) return {};
  const uint64_t end = std::min(chunk.begin + chunk.size, limit);
  if (end <= request.moved) return {};
  return {chunk.buffer.data + (request.moved - chunk.begin), end - request.moved};
}

uint8_t* Crossings::place(Crossing& crossing, uint64_t offset, uint64_t size) const {
  for (const Crossing::Chunk& chunk : crossing.chunks) {
    if (offset < chunk.begin || offset - chunk.begin >= chunk.size) continue;
    if (chunk.value != 0 || size > chunk.size - (offset - chunk.begin)) return nullptr;
    return chunk.buffer.data + (offset - chunk.begin);
  }
  return nullptr;
}

void Crossings::release_until(Crossing& crossing, uint64_t end) {
  while (!crossing.chunks.empty()) {
    Crossing::Chunk& chunk = crossing.chunks.front();
    if (chunk.begin + chunk.size > end) return;
    give_back(crossing, chunk);
    crossing.chunks.pop_front();
  }
  close(crossing);
}

// A stream and a word are held with buffers only.
void Crossings::close(Crossing& crossing) {
  if (!crossing.stream || !crossing.is_quiet()) return;
  link_.gpu->give_stream(crossing.stream);
  link_.gpu->give_word(crossing.word);
  crossing.stream = nullptr;
  crossing.word = {};
}

// Up to which byte buffers may be taken.
uint64_t Crossings::may_begin(const Crossing& crossing) const {
  if (crossing.direction == StagingDirection::kIn) return crossing.length;
  return std::min(crossing.length, crossing.request->granted);
}

Crossings::Step Crossings::next_step(Crossing& crossing) {
  if (crossing.busy) return Step::kNothing;
  bool late = crossing.copying() && now_ns() - crossing.looked > kAskForErrors;
  if (late) return Step::kCheck;
  if (!crossing.request || !crossing.failure.ok() || crossing.withdrawn) return Step::kNothing;
  // One copy behind the other: the next is enqueued while this one is under way.
  for (Crossing::Chunk& chunk : crossing.chunks) {
    if (chunk.value != 0) continue;
    bool ready =
        crossing.direction == StagingDirection::kOut || chunk.begin + chunk.size <= crossing.there;
    if (ready) return Step::kCopy;
    break;
  }
  if (crossing.request->device.after.pending()) return Step::kAskProducer;
  bool more = crossing.begun < may_begin(crossing) && !crossing.awaited;
  return more && crossing.chunks.size() < link_.staging_depth ? Step::kTake : Step::kNothing;
}

void Crossings::stop(Crossing& crossing, Status why) {
  crossing.failure = std::move(why);
  any_stopped_[static_cast<size_t>(crossing.direction)] = true;
}

void Crossings::withdraw(Crossing& crossing) {
  crossing.withdrawn = true;
  any_stopped_[static_cast<size_t>(crossing.direction)] = true;
}

void Crossings::look_at(Crossing& crossing) {
  List& idle = idle_of(crossing);
  if (!crossing.holds) idle.splice(idle.begin(), idle, crossing.at);
}

bool Crossings::progress() {
  bool any = false;
  for (auto next = holding_.begin(); next != holding_.end();) {
    auto at = next++;
    Crossing& crossing = **at;
    any = settle(crossing) || any;
    if (!crossing.request && reap(crossing)) {
      holding_.erase(at);
    } else if (crossing.chunks.empty() && !crossing.busy) {
      // What has begun goes on before others begin.
      List& idle = idle_of(crossing);
      crossing.holds = false;
      idle.splice(idle.begin(), holding_, at);
    }
  }
  // A step releases the lock, so it is the last look at the lists. What frees buffers goes
  // before what takes them, and exhaustion in one direction must not block the other.
  for (std::shared_ptr<Crossing> crossing : holding_) {
    Step step = next_step(*crossing);
    if (step != Step::kNothing && step != Step::kTake) return take_step(crossing, step) || any;
  }
  for (size_t i = 0; i < 2 && !any; ++i) {
    turn_ ^= 1;
    any = take_more(static_cast<StagingDirection>(turn_));
  }
  return any;
}

// Those that have buffers come first. The others each in its turn: one that waits for earlier work,
// or for the other side, must not block them.
bool Crossings::take_more(StagingDirection direction) {
  auto wants = [&](const std::shared_ptr<Crossing>& crossing) {
    return crossing->direction == direction && next_step(*crossing) == Step::kTake;
  };
  auto first = std::find_if(holding_.begin(), holding_.end(), wants);
  const bool waits = first != holding_.end();
  if (waits && take_step(std::shared_ptr(*first), Step::kTake)) return true;
  List& idle = idle_[static_cast<size_t>(direction)];
  for (size_t looks = std::min(idle.size(), kLooksAtIdle); looks-- > 0 && !idle.empty();) {
    std::shared_ptr<Crossing> crossing = idle.front();
    if (!crossing->request && reap(*crossing)) {
      idle.pop_front();
      return true;
    }
    Step step = next_step(*crossing);
    crossing->holds = step == Step::kTake && !waits;
    List& where = crossing->holds ? holding_ : idle;
    where.splice(where.end(), idle, idle.begin());
    if (crossing->holds || (step != Step::kNothing && step != Step::kTake)) {
      return take_step(crossing, step);
    }
  }
  return false;
}

// What the engine has done since the last look.
bool Crossings::settle(Crossing& crossing) {
  if (crossing.chunks.empty() || !crossing.word.host) return false;
  // acquire: the device's bytes are in place.
  uint64_t seen = crossing.word.host->load(std::memory_order_acquire);
  uint64_t before = crossing.copied;
  for (const Crossing::Chunk& chunk : crossing.chunks) {
    if (chunk.value == 0 || chunk.value > seen) break;
    crossing.copied = std::max(crossing.copied, chunk.begin + chunk.size);
  }
  if (crossing.copied == before) return false;
  if (crossing.direction == StagingDirection::kOut) return true;
  release_until(crossing, crossing.copied);
  Request* request = crossing.request;
  if (request && crossing.copied == crossing.length && !crossing.withdrawn) {
    request->nbytes = crossing.length;
    request->path = link_.path;
    link_.stats.count_received(request->path, request->nbytes);
    link_.finish(*request, {});
  }
  return true;
}

bool Crossings::take_step(const std::shared_ptr<Crossing>& held, Step step) {
  Crossing& crossing = *held;
  crossing.busy = true;
  if (step == Step::kCheck) {
    // A lost context writes no word. Other query errors do not mean that the copy failed.
    Result<bool> idle = link_.without_lock([&] { return link_.gpu->is_idle(crossing.stream); });
    crossing.busy = false;
    crossing.looked = now_ns();
    bool lost = link_.gpu->is_lost();
    // After a failure not all of it was enqueued.
    if (!lost && (crossing.failure.ok() || !idle.ok() || !*idle)) return false;
    crossing.value = crossing.word.host->load(std::memory_order_acquire);
    if (lost) stop(crossing, link_.gpu->loss());
    return true;
  }
  Request& request = *crossing.request;
  if (step == Step::kAskProducer) {
    After& after = request.device.after;
    Result<bool> complete = link_.without_lock([&] { return after.is_complete(); });
    crossing.busy = false;
    if (!complete.ok()) stop(crossing, complete.status());
    if (!complete.ok() || !*complete) return !complete.ok();
    after.reset();
    if (crossing.direction == StagingDirection::kOut) {
      Frame frame;
      frame.type = FrameType::kReady;
      frame.op = crossing.op;
      link_.send(frame);
    }
    return true;
  }
  if (step == Step::kTake) {
    cuda::Stream stream = nullptr;
    cuda::DoneWord word;
    const bool is_open = crossing.stream != nullptr;
    Status status;
    bool opens = false;
    Result<PooledBuffer> buffer = link_.without_lock([&] {
      Result<PooledBuffer> taken = pool().take(crossing.direction, this);
      status = taken.status();
      opens = taken.ok() && taken->data && !is_open;
      if (opens) status = open(&stream, &word);
      if (!status.ok() && taken.ok()) pool().give(crossing.direction, *taken);
      return taken;
    });
    crossing.busy = false;
    if (opens && status.ok()) {
      crossing.stream = stream;
      crossing.word = word;
      crossing.value = word.host->load(std::memory_order_relaxed);
    }
    if (!status.ok()) stop(crossing, status);
    if (!status.ok() || !buffer->data) return !status.ok();
    uint64_t size = std::min(pool().buffer_size(), may_begin(crossing) - crossing.begun);
    // It is sent in parts that end where the receiver's buffers do.
    if (uint64_t border = request.border) {
      size = std::min(size, border - crossing.begun % border);
    }
    crossing.chunks.push_back({.begin = crossing.begun, .size = size, .buffer = *buffer});
    crossing.begun += size;
    if (crossing.direction == StagingDirection::kIn) grant(crossing);
    return true;
  }
  auto chunk = std::find_if(crossing.chunks.begin(), crossing.chunks.end(),
                            [](const Crossing::Chunk& other) { return other.value == 0; });
  if (crossing.direction == StagingDirection::kIn && link_.ucx) {
    link_.ucx->targets().revoke(crossing.op, chunk->begin);
  }
  chunk->value = ++crossing.value;
  take_list(crossing, *chunk);
  crossing.looked = now_ns();
  bool over = false;
  Status status = link_.without_lock([&] {
    OH_FAULT_POINT("transfer.copy");
    Status copied = copy(crossing, *chunk);
    // Some of it may have been enqueued.
    over = !copied.ok() && link_.gpu->wait_idle(crossing.stream, Deadline::after(kSecond));
    pool().grow_if_low();
    return copied;
  });
  crossing.busy = false;
  if (!status.ok()) stop(crossing, status);
  if (over) crossing.value = crossing.word.host->load(std::memory_order_acquire);
  return true;
}

// A stream and a word of its own: copies of different messages pass each other.
Status Crossings::open(cuda::Stream* stream, cuda::DoneWord* word) const {
  OH_ASSIGN_OR_RETURN(*stream, link_.gpu->take_stream());
  Result<cuda::DoneWord> taken = link_.gpu->take_word();
  if (!taken.ok()) {
    link_.gpu->give_stream(*stream);
    return taken.status();
  }
  *word = *taken;
  return {};
}

// Lets the sender go on to the end of the last buffer.
void Crossings::grant(const Crossing& crossing) {
  const Crossing::Chunk& last = crossing.chunks.back();
  if (link_.ucx) link_.ucx->targets().post(crossing.op, last.buffer.data, last.begin, last.size);
  Frame frame;
  frame.type = FrameType::kCts;
  frame.op = crossing.op;
  frame.length = crossing.begun;
  frame.address = pool().buffer_size();
  link_.send(frame);
}

}  // namespace oh
