// SPDX-License-Identifier: Apache-2.0
//
// Backing: physical memory of a device, held by this process as a memfd and a mapping that the
// fake's own copies use. The memfd's name in /proc describes it to other processes.
//
// Threading: immutable; any thread.
#pragma once

#include <memory>

#include "platform/cuda/abi.h"

namespace oh::cuda::fake {

enum class Purpose : char { kPlain = 'a', kVmm = 'v', kPool = 'p', kPoolHandle = 'h' };

struct BackingFacts {
  Purpose purpose = Purpose::kPlain;
  int physical = 0;      // index of the device
  int handle_types = 0;  // handle types that it may be exported as
  size_t size = 0;
};

class Backing {
 public:
  // kOutOfMemory: exceeds the device's memory.
  static Code create(const BackingFacts& facts, std::shared_ptr<Backing>* out);
  // Takes ownership of `fd`, also on failure. kInvalidValue: not memory of the fake.
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

// Creates a file descriptor that carries `facts` but no memory: a pool's handle. -1 on failure.
int create_named(const BackingFacts& facts);
// kInvalidValue: not a descriptor of the fake.
Code read_named(int fd, BackingFacts* facts);
// 0: not an open descriptor.
uint64_t inode_of(int fd);

// The data that another process needs to map plain and pool memory of this one.
struct SharedName {
  uint64_t magic;
  uint64_t object;
  uint64_t start;  // start time of the owner
  int32_t pid;
  int32_t fd;
  uint64_t pool;  // inode of the pool's handle, or 0
};
static_assert(sizeof(SharedName) <= sizeof(IpcHandle));
SharedName name_of(const Backing& backing, uint64_t pool);
// kInvalidValue: damaged, freed, or the owner is dead.
Code open_named(const SharedName& name, std::shared_ptr<Backing>* out);

}  // namespace oh::cuda::fake
