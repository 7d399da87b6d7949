// SPDX-License-Identifier: Apache-2.0
//
// NCCL's send and receive, to compare with: the library is opened at run time. Each operation is
// awaited by the host (the stream's end), as onehop's blocking calls are, or all are in the order
// of a stream.
//
// Threading: each belongs to one thread.
#pragma once

#include "meeting.h"
#include "nccl_library.h"
#include "stream_loops.h"

namespace bench {

class Nccl {
 public:
  // The first of `libraries` that can be opened. GpuError: none can.
  Nccl(int number, const std::string& device, const std::vector<std::string>& libraries,
       size_t largest);
  ~Nccl();
  Nccl(const Nccl&) = delete;
  Nccl& operator=(const Nccl&) = delete;

  // For the other side, which gives it to meet(): of side 0 also the communicator's unique id.
  onehop::Bytes hello();
  void meet(const onehop::Bytes& hello);
  // Milliseconds of ncclCommInitRank and of the first send; bytes of the GPU that both took.
  double init_ms() const { return init_ms_; }
  double first_ms() const { return first_ms_; }
  double device_bytes() const { return device_bytes_; }
  std::string version() const { return library_.version(); }
  Outcome latency(const Spec& spec);
  Outcome bandwidth(const Spec& spec);

 private:
  void enqueue(bool send, size_t size, size_t offset);
  void wait();
  StreamPair stream_pair(size_t size);
  void prepare(const Spec& spec, size_t size, uint64_t phase);
  uint64_t verify(const Spec& spec, size_t size, uint64_t phase);
  void flow(const Spec& spec, uint64_t count, Outcome* outcome);

  Device device_;
  Meeting meeting_;
  int number_;
  NcclLibrary library_;
  void* communicator_ = nullptr;
  onehop::Bytes id_;
  GpuBlock out_;
  GpuBlock in_;
  double init_ms_ = 0;
  double first_ms_ = 0;
  double device_bytes_ = 0;
};

}  // namespace bench
