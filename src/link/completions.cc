// SPDX-License-Identifier: Apache-2.0
#include "link/completions.h"

#include <unistd.h>

#include "platform/os/os.h"

namespace oh {

Result<int> CompletionEvent::fd() {
  MutexLock lock(mutex_);
  if (!event_.valid()) {
    int result = os().eventfd();
    if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "eventfd");
    event_ = UniqueFd(result);
    number_.store(result);
  }
  return event_.get();
}

void CompletionEvent::announce() {
  uint64_t one = 1;
  int fd = number_.load();
  if (fd < 0) return;
  [[maybe_unused]] ssize_t written = write(fd, &one, sizeof(one));
}

void CompletionEvent::clear() {
  uint64_t ignored;
  int fd = number_.load();
  if (fd < 0) return;
  [[maybe_unused]] ssize_t got = read(fd, &ignored, sizeof(ignored));
}

}  // namespace oh
