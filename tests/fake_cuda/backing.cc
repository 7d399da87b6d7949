// SPDX-License-Identifier: Apache-2.0
//
// Physical memory: created here, or opened from another process.
//
// Threading: any thread.
#include "backing.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "arena.h"
#include "config.h"
#include "session.h"

namespace oh::cuda::fake {
namespace {
constexpr uint64_t kMagic = 0x6b616675'64616f68;
}

uint64_t inode_of(int fd) {
  struct stat facts{};
  return fstat(fd, &facts) == 0 ? facts.st_ino : 0;
}

int create_named(const BackingFacts& facts) {
  char name[128];
  snprintf(name, sizeof(name), "fake_cuda:%c:%d:%d:%zu", static_cast<char>(facts.purpose),
           facts.physical, facts.handle_types, facts.size);
  return memfd_create(name, MFD_CLOEXEC);
}

Code read_named(int fd, BackingFacts* facts) {
  char path[64];
  char name[256];
  snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
  const ssize_t length = readlink(path, name, sizeof(name) - 1);
  if (length <= 0) return kInvalidValue;
  name[length] = '\0';
  char purpose = 0;
  BackingFacts found;
  if (sscanf(name, "/memfd:fake_cuda:%c:%d:%d:%zu", &purpose, &found.physical, &found.handle_types,
             &found.size) != 4) {
    return kInvalidValue;
  }
  found.purpose = static_cast<Purpose>(purpose);
  if (found.physical >= config().devices) return kInvalidDevice;
  *facts = found;
  return kSuccess;
}

Code Backing::create(const BackingFacts& facts, std::shared_ptr<Backing>* out) {
  std::shared_ptr<Backing> backing(new Backing);
  backing->facts_ = facts;
  backing->fd_ = create_named(facts);
  if (backing->fd_ < 0) return kOutOfMemory;
  if (ftruncate(backing->fd_, static_cast<off_t>(round_up(facts.size, kPage))) != 0) {
    return kOutOfMemory;
  }
  const Code code = backing->start(config().memory);
  if (code == kSuccess) *out = std::move(backing);
  return code;
}

Code Backing::adopt(int fd, std::shared_ptr<Backing>* out) {
  std::shared_ptr<Backing> backing(new Backing);
  backing->fd_ = fd;
  Code code = read_named(fd, &backing->facts_);
  struct stat facts{};
  if (code == kSuccess &&
      (fstat(fd, &facts) != 0 || static_cast<size_t>(facts.st_size) < backing->facts_.size)) {
    code = kInvalidValue;
  }
  if (code == kSuccess) code = backing->start(0);
  if (code == kSuccess) *out = std::move(backing);
  return code;
}

Code Backing::start(size_t limit) {
  object_ = inode_of(fd_);
  const size_t size = round_up(facts_.size, kPage);
  const Code code = Session::instance().hold(object_, facts_.physical, size, limit);
  if (code != kSuccess) return code;
  held_ = true;
  void* memory = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) return kMapFailed;
  bytes_ = static_cast<char*>(memory);
  return kSuccess;
}

Backing::~Backing() {
  if (bytes_ != nullptr) munmap(bytes_, round_up(facts_.size, kPage));
  if (held_) Session::instance().drop(object_);
  if (fd_ >= 0) close(fd_);
}

SharedName name_of(const Backing& backing, uint64_t pool) {
  const ProcessId self = this_process();
  return {kMagic, backing.object(), self.start, self.pid, backing.fd(), pool};
}

Code open_named(const SharedName& name, std::shared_ptr<Backing>* out) {
  if (name.magic != kMagic || !is_alive({name.pid, name.start})) return kInvalidValue;
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/fd/%d", name.pid, name.fd);
  struct stat facts{};  // re-checked before opening: the file may have been replaced
  if (stat(path, &facts) != 0 || facts.st_ino != name.object) return kInvalidValue;
  const int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return kInvalidValue;
  if (inode_of(fd) != name.object) {
    close(fd);
    return kInvalidValue;
  }
  return Backing::adopt(fd, out);
}

}  // namespace oh::cuda::fake
