// SPDX-License-Identifier: Apache-2.0
//
// One side of a onehop benchmark: an endpoint and its link to the other side. Side 0 measures, side
// 1 answers; both call the same function with the same Spec.
//
// Threading: a side belongs to one thread at a time.
#pragma once

#include <optional>

#include "gpu.h"
#include "onehop/onehop.hpp"
#include "wire.h"

namespace bench {

// Tags of the benchmark's traffic and of its control messages.
inline constexpr uint64_t kDataTag = 0;
inline constexpr uint64_t kControlTag = 1;

class Side : public Link {
 public:
  // `device`: "cuda:N", the endpoint's device; empty: host memory only. `max_inline`: the value to
  // request; empty: the configuration's.
  explicit Side(int number, const std::string& device = "",
                std::optional<size_t> max_inline = std::nullopt);

  int number() const override { return number_; }
  Bytes swap(const Bytes& bytes) override;
  onehop::Endpoint& endpoint() { return *endpoint_; }
  onehop::Peer& peer() { return *peer_; }
  const onehop::Bytes& other_address() const { return other_address_; }
  // GpuError: the side has no device.
  const Device& device() const;
  bool has_device() const { return device_.has_value(); }
  // Creates another endpoint like the side's own.
  onehop::Endpoint make_endpoint() const;
  // Allocates memory of the row's kind.
  std::unique_ptr<Buffer> make_buffer(const Spec& spec, size_t size) const;
  // Time to create the endpoint; the first of a process also opens libcrypto.
  double created_us() const { return created_us_; }
  // The largest message that travels inline, as granted by the link.
  size_t max_inline() const { return peer_->info().max_inline; }

  onehop::Bytes address() const { return endpoint_->address(); }
  void connect(const onehop::Bytes& address);
  void accept();
  // Closes the link. Idempotent.
  void close();
  // Exchanges regions with the other side, which calls it, too.
  onehop::RemoteRegion swap_region(const onehop::Region& region);

 private:
  int number_;
  double created_us_ = 0;
  std::string name_;
  std::optional<size_t> asked_inline_;
  std::optional<Device> device_;
  std::unique_ptr<onehop::Endpoint> endpoint_;
  std::unique_ptr<onehop::Peer> peer_;
  onehop::Bytes other_address_;
};

// Private host memory, or a shared block (spec.shared).
std::unique_ptr<Buffer> make_host_buffer(const Spec& spec, size_t size);

// Measures a row over a side's link.
Outcome side_row(Side& side, const Spec& spec);
// Measures a stream-ordered row, or one within a kernel.
Outcome ordered(Side& side, const Spec& spec);

struct SetupOutcome {
  Outcome endpoint;  // creating an endpoint
  Outcome connect;   // connecting it
  Outcome first;     // the first 8 bytes, until they are answered
  Outcome further;   // connecting and the first 8 bytes, of an endpoint that already had a link
  double rss_per_peer = 0;  // bytes of side 0's process; shared pages count in full
  double pss_per_peer = 0;  // as above; shared pages are divided among the processes that map them
  double device_per_peer = 0;  // bytes of side 0's GPU
};

// Measures the cost of an endpoint, a link and its first bytes, in time and in memory: creates,
// connects and closes `spec.iterations` endpoints on side 0, opens and closes as many links of one
// endpoint, then keeps `spec.window` links of another.
SetupOutcome setup(Side& side, const Spec& spec);

}  // namespace bench
