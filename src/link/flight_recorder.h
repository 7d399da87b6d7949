// SPDX-License-Identifier: Apache-2.0
//
// FlightRecorder: the last operations of a link, to diagnose a hang. A record costs one store of 16
// bytes; small messages are recorded without a time.
//
// Threading: guarded by the link's lock.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "link/request.h"

namespace oh {

class FlightRecorder {
 public:
  static constexpr size_t kRecords = 1024;

  // Records an operation that has ended; `time` 0: unknown.
  void note(OpKind kind, oh_path path, uint64_t tag, uint64_t size, oh_status status = OH_OK,
            int64_t time = 0) {
    size_t index = next_++ % kRecords;
    records_[index] = {tag, size << 16 | static_cast<uint64_t>(kind) << 12 |
                                static_cast<uint64_t>(path) << 8 | static_cast<uint8_t>(-status)};
    if (time) times_[index] = time;
  }
  // One line per record, the oldest first.
  std::string text(int64_t now) const;

 private:
  struct Record {
    uint64_t tag;
    uint64_t rest;  // size 48 | kind 4 | path 4 | negated status 8
  };
  uint64_t next_ = 0;
  std::array<Record, kRecords> records_{};
  // The times of records without one are those of older records, or 0.
  std::array<int64_t, kRecords> times_{};
};

// Writes the text of a record to a file, and replaces an older one.
Status write_flight_record(const std::string& path, const std::string& peer,
                           const std::string& text);

// "send", "receive", ...
const char* verb_of(OpKind kind);

}  // namespace oh
