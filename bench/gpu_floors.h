// SPDX-License-Identifier: Apache-2.0
//
// Floors of GPU memory: what the copy engines can do without a library, to compare with.
//
// Threading: each belongs to one thread.
#pragma once

#include "meeting.h"
#include "producer.h"

namespace bench {

// cudaMemcpyAsync from one device to another within this process, until the stream is done: one
// after the other, or `spec.window` at a time, or both ways at once (`spec.both`).
Outcome floor_gpu_memcpy(const Spec& spec, const std::string& from, const std::string& to);

// Two processes, of which each has mapped a block of the other's.
class MappedPair {
 public:
  // For the other side, which gives it to meet().
  onehop::Bytes hello() const;
  void meet(const onehop::Bytes& hello);

 protected:
  struct Sizes {
    size_t out;
    size_t in;
  };
  MappedPair(int number, const std::string& device, Sizes sizes);
  ~MappedPair();
  MappedPair(const MappedPair&) = delete;
  MappedPair& operator=(const MappedPair&) = delete;

  Device device_;
  Meeting meeting_;
  int number_;
  GpuBlock out_;
  GpuBlock in_;
  cuda::DevicePtr theirs_ = 0;  // the other side's `in_`
};

// A message as two processes make it with the driver alone: a copy into the other's memory, which
// is mapped by its legacy handle, the stream's end, and a word in shared memory. With Mode::kEvent
// the copy is behind an event of another stream.
class PutFlag : public MappedPair {
 public:
  PutFlag(int number, const std::string& device, size_t largest);
  ~PutFlag();
  Outcome latency(const Spec& spec);

 private:
  void round(const Spec& spec, Producer* producer, uint64_t i);
  void give(size_t size, Producer* producer, uint64_t word);

  cuda::Stream stream_ = nullptr;
  uint64_t word_ = 0;
};

}  // namespace bench
