// SPDX-License-Identifier: Apache-2.0
//
// The session's file, or memory of this process if there is no file.
//
// Threading: any thread; a mutex within the process, flock between processes.
#include "session.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <unordered_set>

#include "config.h"

namespace oh::cuda::fake {
namespace {

constexpr uint64_t kMagic = 0x31657461'74736368;
constexpr size_t kMostHolders = 16384;

// False: no such process, or it is a zombie.
bool start_of(int32_t pid, uint64_t* start) {
  char path[64];
  snprintf(path, sizeof(path), "/proc/%d/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  char text[1024];
  const ssize_t size = read(fd, text, sizeof(text) - 1);
  close(fd);
  if (size <= 0) return false;
  text[size] = '\0';
  const char* at = strrchr(text, ')');  // the name before may contain any character
  if (at == nullptr) return false;
  char state = 0;
  unsigned long long ticks = 0;
  const int found = sscanf(at + 1,
                           " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s "
                           "%*s %*s %*s %*s %llu",
                           &state, &ticks);
  *start = ticks;
  return found == 2 && state != 'Z' && state != 'X';
}

}  // namespace

ProcessId this_process() {
  static const ProcessId kThis = [] {
    ProcessId process;
    process.pid = getpid();
    start_of(process.pid, &process.start);
    return process;
  }();
  return kThis;
}

bool is_alive(const ProcessId& process) {
  uint64_t start = 0;
  return start_of(process.pid, &start) && start == process.start;
}

struct Session::Holder {
  uint64_t object;  // 0: free slot
  uint64_t size;
  uint64_t start;
  int32_t pid;
  int32_t physical;
};

struct Session::File {
  uint64_t magic;
  uint64_t places;  // slots that were ever used
  Holder holders[kMostHolders];
};

class Session::Guard {
 public:
  explicit Guard(Session& session) : lock_(session.mutex_), fd_(session.fd_) {
    if (fd_ >= 0 && flock(fd_, LOCK_EX) != 0) refuse("FAKE_CUDA_STATE cannot be locked");
  }
  ~Guard() {
    if (fd_ >= 0) flock(fd_, LOCK_UN);
  }
  Guard(const Guard&) = delete;
  Guard& operator=(const Guard&) = delete;

 private:
  std::lock_guard<std::mutex> lock_;
  int fd_;
};

Session& Session::instance() {
  static Session* const kSession = new Session;  // outlives every thread
  return *kSession;
}

Session::Session() {
  const char* path = getenv("FAKE_CUDA_STATE");
  int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (path != nullptr && *path != '\0') {
    fd_ = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd_ < 0) refuse(std::string("FAKE_CUDA_STATE cannot be opened: ") + path);
    flags = MAP_SHARED;
  }
  {
    Guard guard(*this);
    struct stat facts{};
    if (fd_ >= 0 &&
        (fstat(fd_, &facts) != 0 || (facts.st_size == 0 && ftruncate(fd_, sizeof(File)) != 0))) {
      refuse(std::string("FAKE_CUDA_STATE cannot be written: ") + path);
    }
    if (facts.st_size != 0 && static_cast<size_t>(facts.st_size) != sizeof(File)) {
      refuse(std::string("FAKE_CUDA_STATE is another file: ") + path);
    }
    void* memory = mmap(nullptr, sizeof(File), PROT_READ | PROT_WRITE, flags, fd_, 0);
    if (memory == MAP_FAILED) refuse("no memory for the session");
    file_ = static_cast<File*>(memory);
    if (file_->magic == 0) file_->magic = kMagic;
    if (file_->magic != kMagic) refuse(std::string("FAKE_CUDA_STATE is another file: ") + path);
    // Entries of this process from before it called exec.
    const ProcessId self = this_process();
    for (uint64_t i = 0; i < file_->places; ++i) {
      Holder& holder = file_->holders[i];
      if (holder.pid == self.pid && holder.start == self.start) holder = Holder{};
    }
  }
}

size_t Session::count_used(int physical) {
  std::map<std::pair<int32_t, uint64_t>, bool> alive;
  std::unordered_set<uint64_t> seen;
  const ProcessId self = this_process();
  alive[{self.pid, self.start}] = true;
  size_t sum = 0;
  for (uint64_t i = 0; i < file_->places; ++i) {
    Holder& holder = file_->holders[i];
    if (holder.object == 0) continue;
    const auto [entry, is_new] = alive.try_emplace({holder.pid, holder.start}, false);
    if (is_new) entry->second = is_alive({holder.pid, holder.start});
    if (!entry->second) {
      holder = Holder{};
    } else if (holder.physical == physical && seen.insert(holder.object).second) {
      sum += holder.size;
    }
  }
  return sum;
}

Code Session::hold(uint64_t object, int physical, size_t size, size_t limit) {
  Guard guard(*this);
  if (limit != 0 && (size > limit || count_used(physical) > limit - size)) return kOutOfMemory;
  uint64_t place = 0;
  while (place < file_->places && file_->holders[place].object != 0) ++place;
  if (place == kMostHolders) return kOutOfMemory;
  if (place == file_->places) ++file_->places;
  const ProcessId self = this_process();
  file_->holders[place] = {object, size, self.start, self.pid, physical};
  return kSuccess;
}

void Session::drop(uint64_t object) {
  Guard guard(*this);
  const ProcessId self = this_process();
  for (uint64_t i = 0; i < file_->places; ++i) {
    Holder& holder = file_->holders[i];
    if (holder.object == object && holder.pid == self.pid && holder.start == self.start) {
      holder = Holder{};
      return;
    }
  }
}

size_t Session::used(int physical) {
  Guard guard(*this);
  return count_used(physical);
}

}  // namespace oh::cuda::fake
