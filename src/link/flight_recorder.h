// SPDX-License-Identifier: Apache-2.0
//
// The last operations of a link, to diagnose one that stands still. A record costs one store of 16
// bytes; small messages are noted without the time.
//
// Threading: guarded by the peer's lock.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "link/request.h"

namespace oh {

class FlightRecorder {
 public:
  static constexpr size_t kRecords = 1024;

  // An operation that has ended; `time` 0: not known.
  void note(OpKind kind, oh_path path, uint64_t tag, uint64_t size, oh_status status = OH_OK,
            int64_t time = 0) {
    size_t index = next_++ % kRecords;
    records_[index] = {tag, size << 16 | static_cast<uint64_t>(kind) << 12 |
                                static_cast<uint64_t>(path) << 8 | static_cast<uint8_t>(-status)};
    if (time) times_[index] = time;
  }
  // The oldest first, a line each.
  std::string text(int64_t now) const;

 private:
  struct Record {
    uint64_t tag;
    uint64_t rest;  // size 48 | kind 4 | path 4 | negated status 8
  };
  uint64_t next_ = 0;
  std::array<Record, kRecords> records_{};
  // Where the record has none, the time of an older one, or 0.
  std::array<int64_t, kRecords> times_{};
};

// Writes a record to a file, in place of an older one.
Status write_flight_record(const std::string& path, const std::string& peer,
                           const std::string& text);

// "send", "receive", ...
const char* verb_of(OpKind kind);

}  // namespace oh
