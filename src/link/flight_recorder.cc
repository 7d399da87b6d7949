// SPDX-License-Identifier: Apache-2.0
#include "link/flight_recorder.h"

#include <errno.h>

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "link/tags.h"

namespace oh {

const char* verb_of(OpKind kind) {
  static constexpr const char* kVerbs[] = {
      "send", "receive", "put", "get", "notification", "signal", "receive of a batch", "wait"};
  static_assert(std::size(kVerbs) == static_cast<size_t>(OpKind::kReady) + 1);
  return kVerbs[static_cast<size_t>(kind)];
}

std::string FlightRecorder::text(int64_t now) const {
  std::string text;
  int64_t latest = 0;
  for (uint64_t i = next_ - std::min<uint64_t>(next_, kRecords); i < next_; ++i) {
    const Record& record = records_[i % kRecords];
    int64_t time = times_[i % kRecords];
    // Times ascend: one that does not ascend was left by an older record.
    std::string when = "        -";
    if (time > latest) {
      latest = time;
      when = strf("%9.3f", static_cast<double>(now - time) / 1e6);
    }
    auto status = static_cast<oh_status>(-static_cast<int>(record.rest & 0xff));
    text += strf(
        "%s ms ago  #%llu %s of %llu bytes, %s, by %s: %s\n", when.c_str(),
        static_cast<unsigned long long>(i), verb_of(static_cast<OpKind>(record.rest >> 12 & 0xf)),
        static_cast<unsigned long long>(record.rest >> 16), tag_text(record.tag).c_str(),
        oh_path_name(static_cast<oh_path>(record.rest >> 8 & 0xf)), oh_status_name(status));
  }
  return text;
}

Status write_flight_record(const std::string& path, const std::string& peer,
                           const std::string& text) {
  FILE* file = std::fopen(path.c_str(), "we");
  if (!file) {
    return Status::from_errno(OH_ERR_SYSTEM, errno,
                              strf("the flight record cannot be written to %s", path.c_str()));
  }
  std::fprintf(file, "link to %s, the last operations that ended\n%s", peer.c_str(), text.c_str());
  std::fclose(file);
  return {};
}

}  // namespace oh
