// SPDX-License-Identifier: Apache-2.0
//
// Backing: physical memory of a device, as this process holds it: a memfd and a mapping of it for
// the fake's own copies. Its name in /proc tells every process what it is.
//
// Threading: immutable; any thread.
#pragma once

#include <memory>

#include "platform/cuda/abi.h"

namespace oh::cuda::fake {

enum class Purpose : char { kPlain = 'a', kVmm = 'v', kPool = 'p', kPoolHandle = 'h' };

struct BackingFacts {
  Purpose purpose = Purpose::kPlain;
  int physical = 0;      // the device
  int handle_types = 0;  // that it may be shared by
  size_t size = 0;
};

class Backing {
 public:
  // kOutOfMemory: beyond the device's memory.
  static Code create(const BackingFacts& facts, std::shared_ptr<Backing>* out);
  // Takes `fd`, in any case. kInvalidValue: not memory of the fake.
  static Code adopt(int fd, std::shared_ptr<Backing>* out);
  ~Backing();
  Backing(const Backing&) = delete;
  Backing& operator=(const Backing&) = delete;

  const BackingFacts& facts() const { return facts_; }
  int fd() const { return fd_; }
  uint64_t object() const { return object_; }
  char* bytes() const { return bytes_; }

 private:
  Backing() = default;
  Code start(size_t limit);

  BackingFacts facts_;
  int fd_ = -1;
  uint64_t object_ = 0;  // its inode
  bool held_ = false;    // recorded in the session
  char* bytes_ = nullptr;
};

// A file descriptor that names `facts` and no memory: a pool's handle. -1: none.
int create_named(const BackingFacts& facts);
// kInvalidValue: not one of the fake's.
Code read_named(int fd, BackingFacts* facts);
// 0: not open.
uint64_t inode_of(int fd);

// What another process needs to map plain and pool memory of this one.
struct SharedName {
  uint64_t magic;
  uint64_t object;
  uint64_t start;  // of the owner
  int32_t pid;
  int32_t fd;
  uint64_t pool;  // inode of its handle, or 0
};
static_assert(sizeof(SharedName) <= sizeof(IpcHandle));
SharedName name_of(const Backing& backing, uint64_t pool);
// kInvalidValue: damaged, freed, or of a dead process.
Code open_named(const SharedName& name, std::shared_ptr<Backing>* out);

}  // namespace oh::cuda::fake
