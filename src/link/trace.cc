// SPDX-License-Identifier: Apache-2.0
#include "link/trace.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "link/flight_recorder.h"
#include "platform/os/fork.h"
#include "platform/os/os.h"
#include "platform/os/replace_file.h"

namespace oh {
namespace {

struct Known {
  Mutex mutex;
  Trace* trace OH_GUARDED_BY(mutex) = nullptr;
};

Known& known() {
  return of_this_process([] { return new Known; });
}

// A child of fork() inherits the call, and leaves the parent's file alone.
void write_at_exit() {
  Known& all = known();
  MutexLock lock(all.mutex);
  if (!all.trace) return;
  if (Status status = all.trace->write(); !status.ok()) {
    OH_LOG(kError, "%s", status.text().c_str());
  }
}

std::string host_name() {
  char host[65] = "?";
  gethostname(host, sizeof(host) - 1);
  return host;
}

std::string boot_id() {
  char text[37] = {};
  const int64_t size = os().read_file("/proc/sys/kernel/random/boot_id", text, sizeof(text) - 1);
  return size == sizeof(text) - 1 ? text : "";
}

int64_t epoch_offset() {
  timespec epoch;
  clock_gettime(CLOCK_REALTIME, &epoch);
  return epoch.tv_sec * kSecond + epoch.tv_nsec - now_ns();
}

}  // namespace

std::string expand_trace_path(std::string_view pattern, std::string_view host, int pid) {
  std::string path;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      path += pattern[i];
      continue;
    }
    switch (pattern[++i]) {
      case 'h':
        path += host;
        break;
      case 'p':
        path += std::to_string(pid);
        break;
      default:
        path += pattern[i];
    }
  }
  return path;
}

Result<Trace*> Trace::open(const Config& config) {
  const Nvtx* nvtx = Nvtx::open(config);
  if (config.trace.empty() && !nvtx) return static_cast<Trace*>(nullptr);
  Known& all = known();
  MutexLock lock(all.mutex);
  // A trace that was created only for a tool has no file.
  if (all.trace && (config.trace.empty() || !all.trace->path().empty())) return all.trace;
  std::string path = expand_trace_path(config.trace, host_name(), getpid());
  const size_t events = path.empty() ? 0 : static_cast<size_t>(config.trace_events);
  auto made = std::make_unique<Trace>(std::move(path), events, nvtx);
  if (Status status = made->write(); !status.ok()) {
    return error(OH_ERR_CONFIG, "ONEHOP_TRACE=%s: %s", config.trace.c_str(), status.text().c_str());
  }
  // A child of fork() inherits the atexit() call, and does not touch the parent's trace.
  static std::atomic<bool> at_exit{false};
  if (!at_exit.exchange(true)) std::atexit(write_at_exit);
  all.trace = made.release();
  return all.trace;
}

Trace::Trace(std::string path, size_t events, const Nvtx* nvtx)
    : path_(std::move(path)), nvtx_(nvtx), generation_(fork_generation()), ring_(events) {
  about_.host = host_name();
  about_.boot = boot_id();
  about_.pid = getpid();
  about_.process = strf("%s:%d", about_.host.c_str(), about_.pid);
  about_.epoch_offset = epoch_offset();
}

void Trace::add(const TraceEvent& event) {
  ring_[next_++ % ring_.size()] = event;
  changed_ = true;
}

void Trace::connected(uint64_t link, const std::string& name) {
  if (nvtx_) nvtx_->mark(("connected " + name).c_str());
  if (path_.empty()) return;
  const int64_t now = now_ns();
  MutexLock lock(mutex_);
  // Each link has recorded an event, so the ring has few events of the oldest link left, if any.
  if (links_.size() >= ring_.size()) links_.erase(links_.begin());
  links_[link] = name;
  add({.began = now, .ended = now, .link = link, .kind = TraceKind::kConnected});
}

void Trace::ended(uint64_t link, TraceKind how, oh_status why) {
  if (nvtx_) nvtx_->mark(how == TraceKind::kLost ? "lost a link" : "closed a link");
  if (path_.empty()) return;
  const int64_t now = now_ns();
  MutexLock lock(mutex_);
  add({.began = now, .ended = now, .link = link, .status = why, .kind = how});
}

void Trace::begin(Request& request, const char* with) const {
  request.posted_at = now_ns();
  if (!nvtx_) return;
  request.range.begin(*nvtx_, strf("%s, %s", verb_of(request.kind), with).c_str(), request.size);
}

void Trace::drop(Request& request) const {
  request.range.end();
  request.posted_at = 0;
}

void Trace::end(uint64_t link, Request& request) {
  const int64_t began = request.posted_at;
  drop(request);
  if (path_.empty()) return;
  TraceEvent event;
  event.began = began;
  event.ended = now_ns();
  event.link = link;
  const bool ok = request.status.ok();
  event.tag = ok ? request.message_tag : request.tag;
  event.bytes = ok ? request.nbytes : request.size;
  event.status = request.status.code();
  event.op = request.kind;
  event.path = static_cast<uint8_t>(request.path);
  MutexLock lock(mutex_);
  add(event);
}

TraceRecord Trace::record() const {
  TraceRecord record = about_;
  const uint64_t size = std::min<uint64_t>(next_, ring_.size());
  record.overwritten = next_ - size;
  record.events.reserve(size);
  for (uint64_t i = next_ - size; i < next_; ++i) record.events.push_back(ring_[i % ring_.size()]);
  record.links = links_;
  return record;
}

Status Trace::write() {
  if (generation_ != fork_generation() || path_.empty()) return {};
  MutexLock file_lock(file_mutex_);
  TraceRecord now;
  {
    MutexLock lock(mutex_);
    if (!std::exchange(changed_, false)) return {};
    now = record();
  }
  return replace_file(path_, 0666, "the trace", [&](FILE* file) { write_chrome_trace(now, file); });
}

}  // namespace oh
