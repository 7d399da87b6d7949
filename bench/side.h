// SPDX-License-Identifier: Apache-2.0
//
// One side of a benchmark of onehop: an endpoint and its link to the other side. Side 0 measures,
// side 1 answers; both call the same function with the same Spec.
//
// Threading: a side belongs to one thread at a time.
#pragma once

#include <optional>

#include "gpu.h"
#include "onehop/onehop.hpp"
#include "wire.h"

namespace bench {

// Tags of the benchmark: its traffic, and what the sides tell each other.
inline constexpr uint64_t kDataTag = 0;
inline constexpr uint64_t kControlTag = 1;

class Side : public Link {
 public:
  // `device`: "cuda:N", which the endpoint is for; empty: memory of the host only. `max_inline`:
  // what to ask for; without one, the configuration's.
  explicit Side(int number, const std::string& device = "",
                std::optional<size_t> max_inline = std::nullopt);

  int number() const override { return number_; }
  Bytes swap(const Bytes& bytes) override;
  onehop::Endpoint& endpoint() { return *endpoint_; }
  onehop::Peer& peer() { return *peer_; }
  const onehop::Bytes& other_address() const { return other_address_; }
  // GpuError: the side has none.
  const Device& device() const;
  bool has_device() const { return device_.has_value(); }
  // Another endpoint like the side's own.
  onehop::Endpoint make_endpoint() const;
  // Memory of the kind that the row is about.
  std::unique_ptr<Buffer> make_buffer(const Spec& spec, size_t size) const;
  // What it took to create the endpoint: the first of a process opens libcrypto, too.
  double created_us() const { return created_us_; }
  // What of a message lies within a control message, at most: as the link grants it.
  size_t max_inline() const { return peer_->info().max_inline; }

  onehop::Bytes address() const { return endpoint_->address(); }
  void connect(const onehop::Bytes& address);
  void accept();
  // Ends the link; a later call does nothing.
  void close();
  // The region of the other side, which calls it too.
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

// Private memory of the host, or a shared block (spec.shared).
std::unique_ptr<Buffer> make_host_buffer(const Spec& spec, size_t size);

// A row over a side's link.
Outcome side_row(Side& side, const Spec& spec);
// Of what runs in the order of a stream, or within a kernel.
Outcome ordered(Side& side, const Spec& spec);

struct SetupOutcome {
  Outcome endpoint;            // creating an endpoint
  Outcome connect;             // connecting it
  Outcome first;               // the first 8 bytes, until they are answered
  Outcome further;             // both, of an endpoint that has had a link
  double rss_per_peer = 0;     // bytes of side 0's process, shared pages in full
  double pss_per_peer = 0;     // the same, shared pages divided among those who map them
  double device_per_peer = 0;  // bytes of side 0's GPU
};

// What an endpoint, a link and its first bytes cost, in time and in memory: creates, connects and
// closes `spec.iterations` endpoints on side 0, makes and closes as many links of one, then keeps
// `spec.window` of another.
SetupOutcome setup(Side& side, const Spec& spec);

}  // namespace bench
