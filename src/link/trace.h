// SPDX-License-Identifier: Apache-2.0
//
// Trace: the operations of the process, each from its post to its end, and when its links were
// connected, lost and closed: the last ones in a ring of fixed size, written to the file that
// ONEHOP_TRACE names, and all of them as NVTX ranges, where a tool is attached.
//
// Threading: any thread. The mutex is the last one taken.
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

// What a file is made of.
struct TraceRecord {
  std::string process;  // "host:pid"
  std::string host;
  std::string boot;  // of the host: clocks of the same boot are the same
  int pid = 0;
  int64_t epoch_offset = 0;  // the time since the epoch less the monotonic time, in nanoseconds
  uint64_t overwritten = 0;  // events that the ring has lost
  std::vector<TraceEvent> events;
  std::map<uint64_t, std::string> links;  // their names
};

// Writes Chrome trace events as JSON, by the time of their beginning. Operations of one link that
// overlap are on tracks of their own: slices of one track must nest.
void write_chrome_trace(const TraceRecord& record, FILE* file);

class Trace {
 public:
  // The trace of this process, which its first endpoint with ONEHOP_TRACE or a tool makes; null:
  // none is wanted. OH_ERR_CONFIG: its file cannot be written.
  static Result<Trace*> open(const Config& config);
  // No path: no file, and no events.
  Trace(std::string path, size_t events, const Nvtx* nvtx = nullptr);

  void connected(uint64_t link, const std::string& name);
  void ended(uint64_t link, TraceKind how, oh_status why);
  // An operation that begins: sets posted_at. `with`: the link's name.
  void begin(Request& request, const char* with) const;
  // One that ends without a link: it is in no file.
  void drop(Request& request) const;
  // One that ends now: posted_at is 0 then.
  void end(uint64_t link, Request& request);

  // Writes the file anew, with all that the ring has. Nothing happens if it has been written since
  // the last event.
  Status write();
  const std::string& path() const { return path_; }

 private:
  void add(const TraceEvent& event) OH_REQUIRES(mutex_);
  TraceRecord record() const OH_REQUIRES(mutex_);

  const std::string path_;
  const Nvtx* const nvtx_;     // null: no tool is attached
  const uint32_t generation_;  // of fork()
  TraceRecord about_;          // without events and links
  Mutex mutex_;
  std::vector<TraceEvent> ring_ OH_GUARDED_BY(mutex_);
  uint64_t next_ OH_GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, std::string> links_ OH_GUARDED_BY(mutex_);
  bool changed_ OH_GUARDED_BY(mutex_) = true;
  Mutex file_mutex_;  // taken before the other
};

// The path of ONEHOP_TRACE for this process.
std::string expand_trace_path(std::string_view pattern, std::string_view host, int pid);

}  // namespace oh
