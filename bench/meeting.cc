// SPDX-License-Identifier: Apache-2.0
#include "meeting.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
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

void Meeting::rest() { usleep(0); }

void Meeting::sync() {
  page_->arrived[number_].number.store(++round_, std::memory_order_release);
  await_value(page_->arrived[1 - number_].number, round_);
}

Bytes Meeting::swap(const Bytes& bytes) {
  if (bytes.size() > kMostBytes) throw std::length_error("the sides give each other 1 KiB at most");
  auto& mine = page_->given[number_];
  const auto& theirs = page_->given[1 - number_];
  mine.size = bytes.size();
  std::memcpy(mine.data, bytes.data(), bytes.size());
  sync();
  Bytes found(theirs.data, theirs.data + theirs.size);
  sync();
  return found;
}

}  // namespace bench
