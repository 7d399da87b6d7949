// SPDX-License-Identifier: Apache-2.0
//
// RAII owners of file descriptors and mappings.
//
// Threading: values; one owner at a time.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "base/status.h"

namespace oh {

// Closes the descriptor on destruction. Registered with fork.h, so that a child closes it too.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd);
  UniqueFd(UniqueFd&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), generation_(other.generation_) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) {
      reset();
      fd_ = std::exchange(other.fd_, -1);
      generation_ = other.generation_;
    }
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  void reset();

 private:
  int fd_ = -1;
  uint32_t generation_ = 0;
};

// Checks that this process can open `count` more descriptors. OH_ERR_NO_RESOURCE: it cannot.
Status check_room_for_fds(size_t count);

// Shared memory, mapped read and write.
class Mapping {
 public:
  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}
  Mapping& operator=(Mapping&& other) noexcept {
    if (this != &other) {
      reset();
      data_ = std::exchange(other.data_, nullptr);
      size_ = std::exchange(other.size_, 0);
    }
    return *this;
  }
  ~Mapping() { reset(); }

  // Anonymous shared memory, for peers within the process.
  static Result<Mapping> anonymous(uint64_t size, bool populate = true);
  // `size` bytes of a memfd, from `offset`. Fails if the file is shorter.
  static Result<Mapping> of_fd(int fd, uint64_t size, bool populate, uint64_t offset = 0);

  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  uint64_t size() const { return size_; }
  bool valid() const { return data_ != nullptr; }
  void reset();

 private:
  Mapping(void* data, uint64_t size) : data_(data), size_(size) {}
  void* data_ = nullptr;
  uint64_t size_ = 0;
};

// Creates a memfd of `size` zero bytes. OH_ERR_NOT_VIABLE: this process is not permitted to.
Result<UniqueFd> make_memfd(const char* name, uint64_t size);

// Memory that other processes map by its descriptor. If memfds are forbidden it has no descriptor
// and is private to this process.
struct SharedMemory {
  UniqueFd fd;
  Mapping mapping;
  Status why_private;  // ok: the memory has a descriptor
};
Result<SharedMemory> make_shared_memory(const char* name, uint64_t size);

}  // namespace oh
