// SPDX-License-Identifier: Apache-2.0
#include "platform/cuda/gpu.h"

#include <sched.h>

#include <map>
#include <mutex>

#include "platform/os/handles.h"

namespace oh::cuda {
namespace {

constexpr size_t kStreamsAhead = 4;
constexpr size_t kMostIdle = 64;  // streams
constexpr size_t kPageSize = 4096;
constexpr size_t kWordStride = 64;  // a cache line each

// OH_CUDA_TRY that records a loss of this Gpu's context.
#define OH_GPU_TRY(name, ...)                                             \
  do {                                                                    \
    Code oh_code_ = driver_->name(__VA_ARGS__);                           \
    if (oh_code_ != kSuccess) return failure(oh_code_, symbol::name, {}); \
  } while (false)

}  // namespace

struct Gpu::WordPage {
  Mapping memory;
  DevicePtr device = 0;
};

Enter::Enter(const Gpu& gpu) : gpu_(gpu) {
  const Driver& driver = gpu.driver();
  status_ = driver.usable();
  if (status_.ok()) status_ = gpu.check_context();
  if (!status_.ok()) return;
  Context current = nullptr;
  Code code = driver.context_get_current(&current);
  if (code != kSuccess) {
    status_ = gpu.failure(code, symbol::context_get_current, {});
    return;
  }
  if (current != gpu.context()) {
    code = driver.context_push(gpu.context());
    if (code != kSuccess) {
      status_ = gpu.failure(code, symbol::context_push, strf("cuda:%d", gpu.facts().ordinal));
      // onehop retains the context, so other code must have destroyed it (device reset).
      if (code == kInvalidContext) {
        status_ = gpu.keep_loss(Status(OH_ERR_CLOSED, status_.text()));
      }
      return;
    }
    pushed_ = true;
  }
  mode_ = kCaptureRelaxed;
  code = driver.exchange_capture_mode(&mode_);
  exchanged_ = code == kSuccess;
  if (!exchanged_) status_ = gpu.failure(code, symbol::exchange_capture_mode, {});
}

Enter::~Enter() {
  const Driver& driver = gpu_.driver();
  if (exchanged_) driver.exchange_capture_mode(&mode_);
  Context popped = nullptr;
  if (pushed_) driver.context_pop(&popped);
}

Gpu::Gpu() : kernels_(*this) {}

// The context of a device that was reset has the same handle once it is used again. Its streams and
// events have none: a driver call with one of the former context crashes the process.
Status Gpu::check_context() const {
  if (!driver_->context_id) return {};
  uint64_t id = 0;
  const Code code = driver_->context_id(context_, &id);
  if (code == kSuccess && id == context_id_) return {};
  return failure(code == kSuccess || code == kInvalidContext ? kContextIsDestroyed : code,
                 symbol::context_id, strf("cuda:%d", facts_.ordinal));
}

oh::Result<std::shared_ptr<Gpu>> Gpu::open(const Driver& driver, const std::string& name) {
  OH_ASSIGN_OR_RETURN(Device ordinal, device_named(driver, name));
  return open(driver, ordinal);
}

oh::Result<std::shared_ptr<Gpu>> Gpu::open(const Driver& driver, Device ordinal) {
  struct Opened {
    std::mutex mutex;
    std::map<std::pair<const Driver*, Device>, std::weak_ptr<Gpu>> by_device;
  };
  static Opened* const opened = new Opened;
  OH_RETURN_IF_ERROR(driver.usable());
  std::shared_ptr<Gpu> gpu;
  std::vector<std::shared_ptr<Gpu>> others;  // released without the lock
  {
    // Held while the context is created (up to 200 ms): only threads that open a device wait.
    std::lock_guard lock(opened->mutex);
    std::weak_ptr<Gpu>& known = opened->by_device[{&driver, ordinal}];
    const std::shared_ptr<Gpu> before = known.lock();
    // Detects a device reset that no other call has met.
    if (before) before->ask_for_loss();
    if (before && !before->is_lost()) return before;
    gpu.reset(new Gpu);
    OH_RETURN_IF_ERROR(gpu->start(driver, ordinal));
    known = gpu;
    for (const auto& [place, one] : opened->by_device) {
      std::shared_ptr<Gpu> other = place.first == &driver ? one.lock() : nullptr;
      if (other) others.push_back(std::move(other));
    }
    others.push_back(before);
  }
  // Their peer access was to an earlier context of the device.
  for (const std::shared_ptr<Gpu>& other : others) {
    if (other) other->forget_reach(ordinal);
  }
  return gpu;
}

Status Gpu::start(const Driver& driver, Device ordinal) {
  OH_ASSIGN_OR_RETURN(std::vector<DeviceFacts> devices, list_devices(driver));
  bool found = false;
  for (DeviceFacts& facts : devices) {
    if (facts.ordinal != ordinal) continue;
    facts_ = std::move(facts);
    found = true;
  }
  if (!found) {
    return error(OH_ERR_INVALID, "there is no device cuda:%d; this process sees %zu", ordinal,
                 devices.size());
  }
  Context context = nullptr;
  Code code = driver.primary_retain(&context, ordinal);
  if (code != kSuccess) {
    return driver.failure(code, symbol::primary_retain, strf("cuda:%d", ordinal));
  }
  driver_ = &driver;  // from here on, ~Gpu() cleans up
  context_ = context;
  if (driver.context_id) OH_GPU_TRY(context_id, context, &context_id_);
  for (size_t i = 0; i < kStreamsAhead; ++i) {
    OH_ASSIGN_OR_RETURN(Stream stream, make_stream());
    give_stream(stream);
  }
  return add_words();
}

Gpu::~Gpu() {
  if (!context_ || !driver_->usable().ok()) return;
  if (!is_lost()) {
    Enter enter(*this);
    // If the driver is shutting down, these calls fail and nothing needs to be freed.
    if (enter.status().ok()) {
      kernels_.unload();
      MutexLock lock(mutex_);
      for (Stream stream : streams_) driver_->stream_destroy(stream);
      for (Event event : events_) driver_->event_destroy(event);
      for (auto& page : pages_) driver_->host_unregister(page->memory.data());
    }
  }
  // A device reset releases no references: each retain needs its release after one, too.
  driver_->primary_release(facts_.ordinal);
}

oh::Result<Stream> Gpu::make_stream() {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  Stream stream = nullptr;
  OH_GPU_TRY(stream_create, &stream, kStreamNonBlocking);
  count_objects(1);
  return stream;
}

oh::Result<Stream> Gpu::take_stream() {
  {
    MutexLock lock(mutex_);
    if (!streams_.empty()) {
      Stream stream = streams_.back();
      streams_.pop_back();
      return stream;
    }
  }
  return make_stream();
}

void Gpu::give_stream(Stream stream) {
  {
    MutexLock lock(mutex_);
    if (streams_.size() < kMostIdle) {
      streams_.push_back(stream);
      return;
    }
  }
  count_objects(-1);
  if (is_lost()) return;
  Enter enter(*this);
  if (enter.status().ok()) driver_->stream_destroy(stream);
}

oh::Result<Event> Gpu::take_event() {
  {
    MutexLock lock(mutex_);
    if (!events_.empty()) {
      Event event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  Event event = nullptr;
  OH_GPU_TRY(event_create, &event, kEventDisableTiming);
  count_objects(1);
  return event;
}

void Gpu::give_event(Event event) {
  MutexLock lock(mutex_);
  events_.push_back(event);
}

Status Gpu::add_words() {
  auto page = std::make_unique<WordPage>();
  OH_ASSIGN_OR_RETURN(page->memory, Mapping::anonymous(kPageSize));
  void* base = page->memory.data();
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  Code code =
      driver_->host_register(base, kPageSize, kHostRegisterPortable | kHostRegisterDeviceMap);
  if (code != kSuccess) {
    return failure(code, symbol::host_register, strf("%p, %zu bytes", base, kPageSize));
  }
  code = driver_->host_device_pointer(&page->device, base, 0);
  if (code != kSuccess) {
    driver_->host_unregister(base);
    return failure(code, symbol::host_device_pointer, strf("%p", base));
  }
  count_objects(1);
  MutexLock lock(mutex_);
  for (size_t offset = 0; offset < kPageSize; offset += kWordStride) {
    auto* host = reinterpret_cast<std::atomic<uint64_t>*>(page->memory.data() + offset);
    words_.push_back({host, page->device + offset});
  }
  pages_.push_back(std::move(page));
  return {};
}

oh::Result<DoneWord> Gpu::take_word() {
  while (true) {
    {
      MutexLock lock(mutex_);
      if (!words_.empty()) {
        DoneWord word = words_.back();
        words_.pop_back();
        // relaxed: a later call of this thread passes the word to the device.
        word.host->store(0, std::memory_order_relaxed);
        return word;
      }
    }
    OH_RETURN_IF_ERROR(add_words());
  }
}

void Gpu::give_word(DoneWord word) {
  MutexLock lock(mutex_);
  words_.push_back(word);
}

Status Gpu::copy(Stream stream, DevicePtr to, DevicePtr from, uint64_t size, Event after,
                 DevicePtr word, uint64_t value) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  // The event may belong to another context, so an error does not mean that this one is lost.
  if (after) OH_CUDA_TRY(*driver_, stream_wait_event, stream, after, 0);
  if (size != 0) {
    Code code = driver_->memcpy_async(to, from, size, stream);
    if (code != kSuccess) {
      return failure(
          code, symbol::memcpy_async,
          strf("0x%llx from 0x%llx, %llu bytes, on cuda:%d", static_cast<unsigned long long>(to),
               static_cast<unsigned long long>(from), static_cast<unsigned long long>(size),
               facts_.ordinal));
    }
  }
  // Default flags: the copy becomes visible before the word.
  if (word) OH_GPU_TRY(stream_write64, stream, word, value, kStreamWriteDefault);
  return {};
}

Status Gpu::write_word(Stream stream, DevicePtr word, uint64_t value) {
  return copy(stream, 0, 0, 0, nullptr, word, value);
}

oh::Result<Event> Gpu::event_behind(Stream stream, bool ask) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  auto which = [&] {
    return strf("stream %p, cuda:%d", static_cast<void*>(stream), facts_.ordinal);
  };
  // Check before the query, which would invalidate a capture.
  int capturing = 0;
  Code code = driver_->stream_is_capturing(stream, &capturing);
  if (code == kStreamCaptureImplicit || (code == kSuccess && capturing != 0)) {
    return error(OH_ERR_INVALID,
                 "%s is being captured into a graph: an operation that the host drives cannot wait "
                 "for it; call it before the capture or after the graph was launched",
                 which().c_str());
  }
  if (code != kSuccess) return driver_->failure(code, symbol::stream_is_capturing, which());
  if (ask) {
    code = driver_->stream_query(stream);
    if (code == kSuccess) return Event(nullptr);
    if (code != kNotReady) return driver_->failure(code, symbol::stream_query, which());
  }
  OH_ASSIGN_OR_RETURN(Event event, take_event());
  code = driver_->event_record(event, stream);
  if (code == kSuccess) return event;
  give_event(event);
  return driver_->failure(code, symbol::event_record, which());
}

oh::Result<bool> Gpu::is_complete(Event event) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  Code code = driver_->event_query(event);
  if (code == kSuccess) return true;
  if (code == kNotReady) return false;
  return driver_->failure(code, symbol::event_query, strf("cuda:%d", facts_.ordinal));
}

oh::Result<bool> Gpu::is_idle(Stream stream) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  Code code = driver_->stream_query(stream);
  if (code == kSuccess) return true;
  if (code == kNotReady) return false;
  return failure(code, symbol::stream_query, strf("cuda:%d", facts_.ordinal));
}

bool Gpu::wait_idle(Stream stream, Deadline deadline) {
  while (!is_lost()) {
    oh::Result<bool> idle = is_idle(stream);
    if (idle.ok() && *idle) return true;
    if (deadline.passed()) return is_lost();
    sched_yield();
  }
  return true;
}

// The stream may be the caller's: an error does not mean that this context is lost.
oh::Result<bool> Gpu::is_capturing(Stream stream) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  int status = kCaptureNone;
  Code code = driver_->stream_is_capturing(stream, &status);
  if (code == kSuccess) return status != kCaptureNone;
  return driver_->failure(code, symbol::stream_is_capturing,
                          strf("stream %p, cuda:%d", static_cast<void*>(stream), facts_.ordinal));
}

std::optional<uint64_t> Gpu::stream_id(Stream stream) const {
  if (!driver_->stream_id) return {};
  Enter enter(*this);  // default streams belong to the current context
  uint64_t id = 0;
  if (!enter.status().ok() || driver_->stream_id(stream, &id) != kSuccess) return {};
  return id;
}

Status Gpu::wait_event(Stream stream, Event event) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  OH_CUDA_TRY(*driver_, stream_wait_event, stream, event, 0);
  return {};
}

Status Gpu::wait_stream(Stream stream, Stream other) {
  OH_ASSIGN_OR_RETURN(Event event, event_behind(other, /*ask=*/false));
  Status status = wait_event(stream, event);
  give_event(event);  // the wait is already enqueued
  return status;
}

Status Gpu::wait_word(Stream stream, DevicePtr word, uint64_t value) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  OH_CUDA_TRY(*driver_, stream_wait64, stream, word, value, kStreamWaitAtLeast);
  return {};
}

Status Gpu::record(Event event, Stream stream) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  OH_CUDA_TRY(*driver_, event_record, event, stream);
  return {};
}

oh::Result<Event> Gpu::event_behind_all() {
  if (!driver_->context_record) {
    return error(OH_ERR_NOT_VIABLE, "%s has no %s: install a newer driver",
                 driver_->library.c_str(), symbol::context_record);
  }
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  OH_ASSIGN_OR_RETURN(Event event, take_event());
  Code code = driver_->context_record(context_, event);
  if (code == kSuccess) return event;
  give_event(event);
  return failure(code, symbol::context_record, strf("cuda:%d", facts_.ordinal));
}

Status Gpu::zero(Stream stream, DevicePtr memory, uint64_t size) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  Code code = driver_->memset8_async(memory, 0, size, stream);
  if (code == kSuccess) return {};
  return failure(
      code, symbol::memset8_async,
      strf("%llu bytes, cuda:%d", static_cast<unsigned long long>(size), facts_.ordinal));
}

oh::Result<DevicePtr> Gpu::device_address(const void* host) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  DevicePtr device = 0;
  Code code = driver_->host_device_pointer(&device, const_cast<void*>(host), 0);
  if (code == kSuccess) return device;
  return failure(code, symbol::host_device_pointer, strf("%p", host));
}

oh::Result<DevicePtr> Gpu::allocate(uint64_t size) {
  Enter enter(*this);
  OH_RETURN_IF_ERROR(enter.status());
  DevicePtr memory = 0;
  Code code = driver_->memory_alloc(&memory, size);
  if (code == kSuccess) return memory;
  return failure(
      code, symbol::memory_alloc,
      strf("%llu bytes, cuda:%d", static_cast<unsigned long long>(size), facts_.ordinal));
}

void Gpu::free(DevicePtr memory) {
  if (is_lost()) return;
  Enter enter(*this);
  if (enter.status().ok()) driver_->memory_free(memory);
}

bool Gpu::reach(Device other) {
  if (other == facts_.ordinal) return true;
  {
    MutexLock lock(mutex_);
    for (auto [device, answer] : reached_) {
      if (device == other) return answer;
    }
  }
  Reach answer = ask_reach(other);
  if (answer != Reach::kNotYet) {
    MutexLock lock(mutex_);
    reached_.emplace_back(other, answer == Reach::kYes);
  }
  return answer == Reach::kYes;
}

void Gpu::forget_reach(Device other) {
  MutexLock lock(mutex_);
  std::erase_if(reached_, [other](const auto& answer) { return answer.first == other; });
}

Gpu::Reach Gpu::ask_reach(Device other) {
  Enter enter(*this);
  if (!enter.status().ok()) return Reach::kNotYet;
  int can = 0;
  if (driver_->device_can_access_peer(&can, facts_.ordinal, other) != kSuccess || can == 0) {
    return Reach::kNo;
  }
  // Enabling would create the other context, which takes 200 ms and hundreds of megabytes.
  unsigned flags = 0;
  int active = 0;
  if (driver_->primary_state(other, &flags, &active) != kSuccess || active == 0) {
    return Reach::kNotYet;
  }
  Context context = nullptr;
  if (driver_->primary_retain(&context, other) != kSuccess) return Reach::kNotYet;
  Code code = driver_->context_enable_peer(context, 0);
  driver_->primary_release(other);
  if (code == kSuccess || code == kPeerAccessAlreadyEnabled) return Reach::kYes;
  constexpr Code kTooManyPeers = 711;
  return code == kPeerAccessUnsupported || code == kTooManyPeers ? Reach::kNo : Reach::kNotYet;
}

Status Gpu::failure(Code code, const char* call, const std::string& details) const {
  return keep_loss(driver_->failure(code, call, details));
}

Status Gpu::keep_loss(Status status) const {
  if (status.code() != OH_ERR_DEVICE && status.code() != OH_ERR_CLOSED) return status;
  MutexLock lock(mutex_);
  if (loss_.ok()) loss_ = status;
  // release: publishes loss_; pairs with is_lost().
  lost_.store(true, std::memory_order_release);
  return status;
}

void Gpu::ask_for_loss() {
  oh::Result<Stream> stream = take_stream();
  if (!stream.ok()) return;
  (void)is_idle(*stream).ok();
  give_stream(*stream);
}

Status Gpu::loss() const {
  if (!is_lost()) return {};
  MutexLock lock(mutex_);
  return loss_;
}

size_t Gpu::open_objects() const { return objects_.load(std::memory_order_relaxed); }

}  // namespace oh::cuda
