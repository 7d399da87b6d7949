// SPDX-License-Identifier: Apache-2.0
#include "link/completions.h"

#include <unistd.h>

#include "platform/os/os.h"

namespace oh {

Result<int> Completions::event_fd() {
  MutexLock lock(event_mutex_);
  if (!event_.valid()) {
    int result = os().eventfd();
    if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "eventfd");
    event_ = UniqueFd(result);
    event_number_.store(result);
  }
  return event_.get();
}

void Completions::announce() {
  uint64_t one = 1;
  int fd = event_number_.load();
  if (fd < 0) return;
  [[maybe_unused]] ssize_t written = write(fd, &one, sizeof(one));
}

void Completions::clear_event() {
  uint64_t ignored;
  int fd = event_number_.load();
  if (fd < 0) return;
  [[maybe_unused]] ssize_t got = read(fd, &ignored, sizeof(ignored));
}

}  // namespace oh
