// SPDX-License-Identifier: Apache-2.0
//
// Patterns: exchanges among ranks with onehop (onehop_patterns.hpp); nccl.cc has the NCCL
// equivalents. They are stream rows whose message is an exchange.
//
// Threading: each belongs to one thread. Ownership: a rank outlives what is made with it.
#pragma once

#include <functional>
#include <memory>

#include "gpu.h"
#include "onehop/onehop.hpp"
#include "wire.h"

namespace bench {

// Whether `from` sends to `to`, and how many bytes of the part count. The sizes of a dispatch
// differ in each turn; the timed turn is 0.
bool sends(Mode pattern, uint32_t ranks, uint32_t from, uint32_t to);
size_t part_of(const Spec& spec, uint32_t from, uint32_t to, uint64_t turn);
// The largest number of bytes that any rank sends or receives.
size_t busiest(const Spec& spec, uint32_t ranks);

// The send or receive memory of a rank: `size` bytes for each rank, and the sizes of a dispatch.
class Parts : public Payload {
 public:
  // `padded`: whole parts are transferred, regardless of their sizes.
  Parts(const Device& device, const Spec& spec, uint32_t rank, uint32_t ranks, bool padded,
        std::unique_ptr<GpuBlock> parts);

  uint8_t* part(uint32_t other) { return parts_->data() + other * spec_.size; }
  uint64_t* sizes() { return reinterpret_cast<uint64_t*>(sizes_.data()); }

  // The size of all parts.
  size_t bytes() const override { return spec_.size * ranks_; }
  std::vector<Place> places() const override {
    return {{parts_->data(), parts_->size()}, {sizes_.data(), sizes_.size()}};
  }
  void lay_out(uint64_t pass, bool last) override;
  void clear(uint64_t pass, bool last) override;
  void mark(uint64_t, bool) override {}
  void expect(uint64_t) override {}
  uint64_t check(uint64_t, uint64_t*) override { return 0; }
  // Also checks the parts to which no rank sends.
  uint64_t check_all(uint64_t count, uint64_t* checked) override;

 private:
  void begin(uint64_t pass, bool last);
  uint64_t seed(uint32_t from, uint32_t to) const;

  const Device& device_;
  const Spec spec_;
  uint32_t rank_;
  uint32_t ranks_;
  bool padded_;
  Buffer bytes_;
  const std::unique_ptr<GpuBlock> parts_;
  GpuBlock sizes_;
  uint64_t pass_ = 0;
  uint64_t turn_ = 0;
};

// A rank's part of the exchanges; isend() enqueues one exchange.
class PatternWire : public Wire {
 public:
  // `make` allocates the memory of the parts.
  PatternWire(Link& link, uint32_t ranks, const Device& device, const Spec& spec, bool padded,
              const std::function<std::unique_ptr<GpuBlock>(size_t)>& make);

 protected:
  const Spec spec_;
  const uint32_t rank_;
  const uint32_t ranks_;
  Parts* mine_;
  Parts* theirs_;
};

class PatternRank : public Link {
 public:
  // `id`: from oh_unique_id, the same for all ranks.
  PatternRank(uint32_t rank, uint32_t ranks, const std::string& device, const onehop::Bytes& id);

  const Device& device() const { return device_; }
  onehop::Communicator& comm() { return comm_; }
  uint32_t ranks() const { return comm_.size(); }
  int number() const override { return static_cast<int>(comm_.rank()); }
  // Broadcasts the bytes of rank 0.
  Bytes swap(const Bytes& bytes) override;
  // Also throws errors of the device.
  void sync() override;
  Outcome run(const Spec& spec);

 private:
  Device device_;
  onehop::Communicator comm_;
};

}  // namespace bench
