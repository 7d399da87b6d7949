// SPDX-License-Identifier: Apache-2.0
//
// NCCL, opened at run time, and its send and receive between two sides or among ranks, to compare
// with.
//
// Threading: the library is any thread's; a communicator belongs to one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gpu.h"
#include "wire.h"

namespace bench {

// As nccl.h declares it.
struct NcclId {
  char internal[128];
};

struct NcclLibrary {
  // The first of `libraries` that can be opened. GpuError: none can.
  explicit NcclLibrary(const std::vector<std::string>& libraries);
  void check(int code, const char* call) const;
  std::string version() const;

  int (*get_version)(int*);
  const char* (*get_error)(int);
  int (*get_unique_id)(NcclId*);
  int (*init_rank)(void**, int, NcclId, int);
  int (*send)(const void*, size_t, int, int, void*, cuda::Stream);
  int (*recv)(void*, size_t, int, int, void*, cuda::Stream);
  int (*group_start)();
  int (*group_end)();
  int (*destroy)(void*);
};

// A rank's communicator; what it moves goes on the device's stream.
class Nccl {
 public:
  // All ranks are here at once; the link gives them the bytes of rank 0.
  Nccl(Link& link, uint32_t ranks, const Device& device, const std::vector<std::string>& libraries);
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // The host awaits each operation by the stream's end, as onehop's blocking calls are awaited, or
  // all are in the order of the stream.
  Outcome run(const Spec& spec);

  void send(const void* data, size_t size, uint32_t to);
  void recv(void* data, size_t size, uint32_t from);
  void begin_group();
  void end_group();
  const Device& device() const { return device_; }
  std::string version() const { return library_.version(); }
  // Milliseconds of ncclCommInitRank and of the first send; bytes of the GPU that both took.
  double init_ms() const { return init_ms_; }
  double first_ms() const { return first_ms_; }
  double device_bytes() const { return device_bytes_; }

 private:
  Link& link_;
  const uint32_t ranks_;
  const Device& device_;
  const NcclLibrary library_;
  std::unique_ptr<void, std::function<void(void*)>> communicator_;
  double init_ms_ = 0;
  double first_ms_ = 0;
  double device_bytes_ = 0;
};

}  // namespace bench
