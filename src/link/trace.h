// SPDX-License-Identifier: Apache-2.0
//
// Trace: records the operations of the process, each from post to end, and when its links are
// connected, lost and closed. The last events stay in a ring of fixed size, which is written to the
// file that ONEHOP_TRACE names. Where a tool is attached, all events become NVTX ranges and marks.
//
// Threading: any thread. No other lock is taken under `mutex_`.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/config.h"
#include "base/sync.h"
#include "link/nvtx.h"
#include "link/request.h"

namespace oh {

enum class TraceKind : uint8_t { kOperation, kConnected, kLost, kClosed };

struct TraceEvent {
  int64_t began = 0;  // monotonic, in nanoseconds
  int64_t ended = 0;
  uint64_t link = 0;
  uint64_t tag = 0;
  uint64_t bytes = 0;
  int32_t status = OH_OK;
  TraceKind kind = TraceKind::kOperation;
  OpKind op = OpKind::kSend;
  uint8_t path = OH_PATH_NONE;
};
static_assert(sizeof(TraceEvent) <= 56);

// The contents of a trace file.
struct TraceRecord {
  std::string process;  // "host:pid"
  std::string host;
  std::string boot;  // of the host: processes of one boot share the monotonic clock
  int pid = 0;
  int64_t epoch_offset = 0;  // time since the epoch minus monotonic time, in nanoseconds
  uint64_t overwritten = 0;  // events that the ring has dropped
  std::vector<TraceEvent> events;
  std::map<uint64_t, std::string> links;  // names of the links
};

// Writes Chrome trace events as JSON, ordered by start time. Operations of one link that overlap
// get separate tracks: slices of one track must nest.
void write_chrome_trace(const TraceRecord& record, FILE* file);

class Trace {
 public:
  // Returns the trace of this process, which the first endpoint with ONEHOP_TRACE or an attached
  // tool creates; null: tracing is off. OH_ERR_CONFIG: its file cannot be written.
  static Result<Trace*> open(const Config& config);
  // An empty path: no file, and no events.
  Trace(std::string path, size_t events, const Nvtx* nvtx = nullptr);

  void connected(uint64_t link, const std::string& name);
  void ended(uint64_t link, TraceKind how, oh_status why);
  // Begins an operation: sets posted_at. `with`: the link's name.
  void begin(Request& request, const char* with) const;
  // Ends an operation without a link; no file records it.
  void drop(Request& request) const;
  // Ends and records an operation; clears posted_at.
  void end(uint64_t link, Request& request);

  // Rewrites the file with all events in the ring. Does nothing if no event was added since the
  // last call.
  Status write();
  const std::string& path() const { return path_; }

 private:
  void add(const TraceEvent& event) OH_REQUIRES(mutex_);
  TraceRecord record() const OH_REQUIRES(mutex_);

  const std::string path_;
  const Nvtx* const nvtx_;     // null: no tool is attached
  const uint32_t generation_;  // of fork()
  TraceRecord about_;          // the record without events and links
  Mutex mutex_;
  std::vector<TraceEvent> ring_ OH_GUARDED_BY(mutex_);
  uint64_t next_ OH_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::string> links_ OH_GUARDED_BY(mutex_);
  bool changed_ OH_GUARDED_BY(mutex_) = true;
  Mutex file_mutex_;  // taken before mutex_
};

// Expands %h (host) and %p (pid) in the path of ONEHOP_TRACE.
std::string expand_trace_path(std::string_view pattern, std::string_view host, int pid);

}  // namespace oh
