// SPDX-License-Identifier: Apache-2.0
#include "meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace bench {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::system_error(errno, std::generic_category(), what);
}

}  // namespace

Meeting::Meeting(int number) : number_(number) {
  if (!first()) return;
  fd_ = memfd_create("onehop-bench", MFD_CLOEXEC);
  if (fd_ < 0 || ftruncate(fd_, sizeof(Page)) != 0) fail("memfd_create");
  map();
  new (page_) Page();
}

Meeting::~Meeting() {
  if (page_) munmap(page_, sizeof(Page));
  if (fd_ >= 0) close(fd_);
}

void Meeting::map() {
  void* at = mmap(nullptr, sizeof(Page), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (at == MAP_FAILED) fail("mmap");
  page_ = static_cast<Page*>(at);
}

std::string Meeting::place() const {
  return "/proc/" + std::to_string(getpid()) + "/fd/" + std::to_string(fd_);
}

void Meeting::join(const std::string& place) {
  if (first()) return;
  fd_ = open(place.c_str(), O_RDWR | O_CLOEXEC);
  if (fd_ < 0) fail("open of the other side's shared page");
  map();
}

void Meeting::rest() const {
  usleep(0);
  if (look_) look_();
}

void Meeting::sync() {
  page_->arrived[number_].value.store(++round_, std::memory_order_release);
  await_value(page_->arrived[1 - number_].value, round_);
}

}  // namespace bench
