// SPDX-License-Identifier: Apache-2.0
//
// NCCL, opened at run time, and its send and receive between two sides, to compare with.
//
// Threading: the library is any thread's; a pair belongs to one.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "gpu.h"
#include "meeting.h"

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
class NcclCommunicator {
 public:
  // All ranks are here at once; `share` gives rank 0's bytes to all.
  NcclCommunicator(const std::vector<std::string>& libraries, const Device& device, uint32_t rank,
                   uint32_t ranks, const std::function<void(NcclId*)>& share);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  void send(const void* data, size_t size, uint32_t to);
  void recv(void* data, size_t size, uint32_t from);
  void begin_group();
  void end_group();
  std::string version() const { return library_.version(); }
  double init_ms() const { return init_ms_; }  // of ncclCommInitRank

 private:
  const NcclLibrary library_;
  const Device& device_;
  void* communicator_ = nullptr;
  double init_ms_ = 0;
};

// Both sides are in the constructor at once.
class Nccl {
 public:
  Nccl(Meeting& meeting, const Device& device, const std::vector<std::string>& libraries);

  // Milliseconds of ncclCommInitRank and of the first send; bytes of the GPU that both took.
  double init_ms() const { return communicator_->init_ms(); }
  double first_ms() const { return first_ms_; }
  double device_bytes() const { return device_bytes_; }
  std::string version() const { return communicator_->version(); }
  // The host awaits each operation by the stream's end, as onehop's blocking calls are awaited, or
  // all are in the order of the stream.
  Outcome run(const Spec& spec);

 private:
  friend class NcclWire;

  Meeting& meeting_;
  const Device& device_;
  std::optional<NcclCommunicator> communicator_;
  double first_ms_ = 0;
  double device_bytes_ = 0;
};

}  // namespace bench
