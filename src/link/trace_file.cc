// SPDX-License-Identifier: Apache-2.0
//
// Writes a trace as Chrome trace events. Times are monotonic microseconds: they are comparable
// between processes of one host, and a double holds them to the nanosecond, unlike times since the
// epoch.
#include <algorithm>
#include <array>
#include <cinttypes>
#include <cstdio>
#include <functional>
#include <queue>
#include <utility>

#include "base/text.h"
#include "link/trace.h"

namespace oh {
namespace {

// In the order of OpKind.
constexpr std::array<const char*, 8> kOps = {"send",   "recv",   "put",        "get",
                                             "notify", "signal", "recv_batch", "wait"};
static_assert(kOps.size() == static_cast<size_t>(OpKind::kReady) + 1);
// In the order of TraceKind.
constexpr std::array<const char*, 4> kKinds = {"operation", "connected", "lost", "closed"};

// The tracks of one link. Each operation gets the first track that is free when it begins.
class Tracks {
 public:
  uint32_t take(int64_t began, int64_t ended) {
    while (!busy_.empty() && busy_.top().first <= began) {
      free_.push(busy_.top().second);
      busy_.pop();
    }
    if (free_.empty()) free_.push(count_++);
    const uint32_t track = free_.top();
    free_.pop();
    busy_.push({ended, track});
    return track;
  }
  // At least one, for the events of the link itself.
  uint32_t count() const { return std::max(count_, uint32_t{1}); }

 private:
  template <typename T>
  using Least = std::priority_queue<T, std::vector<T>, std::greater<T>>;
  Least<std::pair<int64_t, uint32_t>> busy_;  // end time, track
  Least<uint32_t> free_;
  uint32_t count_ = 0;
};

// Microseconds.
std::string time_text(int64_t ns) {
  return strf("%" PRId64 ".%03d", ns / 1000, static_cast<int>(ns % 1000));
}

class TraceWriter {
 public:
  TraceWriter(const TraceRecord& record, FILE* file) : record_(record), file_(file) {
    for (const TraceEvent& each : record.events) events_.push_back(&each);
    // The address keeps the order of events that begin at the same time.
    std::ranges::sort(events_, {},
                      [](const TraceEvent* each) { return std::pair(each->began, each); });
  }
  TraceWriter(const TraceWriter&) = delete;
  TraceWriter& operator=(const TraceWriter&) = delete;

  void write() {
    std::fprintf(file_,
                 "{\"displayTimeUnit\":\"ns\",\"otherData\":{\"host\":%s,\"boot\":%s,\"pid\":%d,"
                 "\"epoch_offset_us\":%s,\"overwritten\":%llu},\n\"traceEvents\":[",
                 json_text(record_.host).c_str(), json_text(record_.boot).c_str(), record_.pid,
                 time_text(record_.epoch_offset).c_str(), ull(record_.overwritten));
    name("process_name", 0, "onehop " + record_.process);
    assign_tracks();
    for (size_t i = 0; i < events_.size(); ++i) event(*events_[i], tracks_[i]);
    std::fputs("\n]}\n", file_);
  }

 private:
  // Tracks are numbered from 1; those of one link are consecutive.
  void assign_tracks() {
    std::map<uint64_t, Tracks> links;
    for (const TraceEvent* each : events_) {
      Tracks& tracks = links[each->link];
      const bool lasts = each->kind == TraceKind::kOperation;
      tracks_.push_back(lasts ? tracks.take(each->began, each->ended) : 0);
    }
    std::map<uint64_t, uint32_t> first;
    uint32_t next = 1;
    for (const auto& [link, tracks] : links) {
      first[link] = next;
      auto found = record_.links.find(link);
      const std::string text =
          found == record_.links.end() ? strf("link %llu", ull(link)) : found->second;
      for (uint32_t i = 0; i < tracks.count(); ++i) {
        name("thread_name", next++, i == 0 ? text : strf("%s (%u)", text.c_str(), i + 1));
      }
    }
    for (size_t i = 0; i < tracks_.size(); ++i) tracks_[i] += first[events_[i]->link];
  }

  void begin(const char* phase, uint32_t track) {
    std::fprintf(file_, "%s\n{\"ph\":\"%s\",\"pid\":%d,\"tid\":%u,", any_ ? "," : "", phase,
                 record_.pid, track);
    any_ = true;
  }

  void name(const char* what, uint32_t track, const std::string& text) {
    begin("M", track);
    std::fprintf(file_, "\"name\":\"%s\",\"args\":{\"name\":%s}}", what, json_text(text).c_str());
  }

  void event(const TraceEvent& each, uint32_t track) {
    const char* status = oh_status_name(static_cast<oh_status>(each.status));
    if (each.kind != TraceKind::kOperation) {
      begin("i", track);
      std::fprintf(file_, "\"s\":\"t\",\"ts\":%s,\"name\":\"%s\",\"args\":{\"status\":\"%s\"}}",
                   time_text(each.began).c_str(), kKinds[static_cast<size_t>(each.kind)], status);
      return;
    }
    begin("X", track);
    std::fprintf(file_, "\"ts\":%s,\"dur\":%s,\"name\":\"%s\",\"args\":{",
                 time_text(each.began).c_str(), time_text(each.ended - each.began).c_str(),
                 kOps[static_cast<size_t>(each.op)]);
    if (each.tag == OH_ANY_TAG) {
      std::fputs("\"tag\":\"any\"", file_);
    } else {
      std::fprintf(file_, "\"tag\":%llu", ull(each.tag));
    }
    std::fprintf(file_, ",\"bytes\":%llu,\"path\":\"%s\",\"status\":\"%s\"}}", ull(each.bytes),
                 oh_path_name(static_cast<oh_path>(each.path)), status);
  }

  const TraceRecord& record_;
  FILE* const file_;
  std::vector<const TraceEvent*> events_;  // by start time
  std::vector<uint32_t> tracks_;           // of each event
  bool any_ = false;
};

}  // namespace

void write_chrome_trace(const TraceRecord& record, FILE* file) {
  TraceWriter(record, file).write();
}

}  // namespace oh
