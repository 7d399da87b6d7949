// SPDX-License-Identifier: Apache-2.0
//
// Patterns of the stream domain: exchanges among a communicator's ranks. Each pattern is one group,
// so one launch, and its operations do not wait for each other. All ranks of a pattern call it on
// the same lane. A call enqueues and returns. It may be captured once all its ranks, including the
// local one, are warmed up. Sizes, offsets and capacities are in bytes. Memory is that of the
// endpoint's GPU.
//
// An empty part is also a message, so a rank need not know whether another rank has data for it.
// Peer::check_async_error of the rank concerned reports later errors. A pattern has at most 128
// sends and receives.
//
// Threading and ownership: as onehop_stream.hpp.
#ifndef ONEHOP_ONEHOP_PATTERNS_HPP_
#define ONEHOP_ONEHOP_PATTERNS_HPP_

#include <vector>

#include "onehop/onehop.hpp"

namespace onehop::patterns {

struct Options {
  uint32_t lane = 0;                  // 0 to OH_LANES - 1
  Timeout timeout = kDefaultTimeout;  // of the waits on the device
};

// A message to a rank, and the memory for a message from a rank.
struct Out {
  int64_t rank;
  const void* data;
  size_t size;
};
struct In {
  int64_t rank;
  void* data;
  size_t capacity;
};

// A part of one buffer for each rank, including the local one: sizes[i] bytes at offsets[i].
struct OutParts {
  const void* data;
  std::vector<size_t> offsets;
  std::vector<size_t> sizes;
};
struct InParts {
  void* data;
  std::vector<size_t> offsets;
  std::vector<size_t> capacities;
};

// `capacity` bytes of one buffer for each rank, contiguous. `sizes` is device memory, 8 bytes for
// each rank: the bytes in use of each part (rows times the bytes of a row).
struct OutRows {
  const void* data;
  const uint64_t* sizes;  // read when the exchange runs
  size_t capacity;
};
struct InRows {
  void* data;
  uint64_t* sizes;  // written
  size_t capacity;
};

namespace detail {
inline StreamOptions of(const Options& options) {
  StreamOptions made;
  made.lane = options.lane;
  made.timeout = options.timeout;
  return made;
}

inline void check_parts(const CommunicatorOnStream& on, size_t offsets, size_t sizes) {
  const size_t ranks = on.communicator().size();
  if (offsets == ranks && sizes == ranks) return;
  throw Error(OH_ERR_INVALID, std::to_string(offsets) + " offsets and " + std::to_string(sizes) +
                                  " sizes: give one for each of " + std::to_string(ranks) +
                                  " ranks");
}
}  // namespace detail

// Sends to one rank and receives from the same or another one, as in a ring.
inline void sendrecv(const CommunicatorOnStream& on, const Out& out, const In& in,
                     const Options& options = {}) {
  Group group;
  on.send(out.data, out.size, out.rank, detail::of(options));
  on.recv(in.data, in.capacity, in.rank, detail::of(options));
  group.end();
}

// Sends to many ranks. Each of them receives (recv_many, or CommunicatorOnStream::recv).
inline void send_many(const CommunicatorOnStream& on, const std::vector<Out>& outs,
                      const Options& options = {}) {
  Group group;
  for (const Out& out : outs) on.send(out.data, out.size, out.rank, detail::of(options));
  group.end();
}

// Receives from many ranks. Each of them sends.
inline void recv_many(const CommunicatorOnStream& on, const std::vector<In>& ins,
                      const Options& options = {}) {
  Group group;
  for (const In& in : ins) on.recv(in.data, in.capacity, in.rank, detail::of(options));
  group.end();
}

// All ranks to all ranks; the host knows the size of each part.
inline void all_to_all_v(const CommunicatorOnStream& on, const OutParts& out, const InParts& in,
                         const Options& options = {}) {
  detail::check_parts(on, out.offsets.size(), out.sizes.size());
  detail::check_parts(on, in.offsets.size(), in.capacities.size());
  const auto* from = static_cast<const uint8_t*>(out.data);
  auto* to = static_cast<uint8_t*>(in.data);
  Group group;
  for (size_t i = 0; i < out.sizes.size(); ++i) {
    const auto rank = static_cast<int64_t>(i);
    on.send(from + out.offsets[i], out.sizes[i], rank, detail::of(options));
    on.recv(to + in.offsets[i], in.capacities[i], rank, detail::of(options));
  }
  group.end();
}

// All ranks to all ranks; only the device knows the size of each part, as when tokens are
// dispatched to experts. A size beyond the capacity is an error at the sender or the receiver.
inline void dispatch(const CommunicatorOnStream& on, const OutRows& out, const InRows& in,
                     const Options& options = {}) {
  const auto* from = static_cast<const uint8_t*>(out.data);
  auto* to = static_cast<uint8_t*>(in.data);
  StreamOptions sends = detail::of(options);
  StreamOptions receives = sends;
  Group group;
  for (uint32_t rank = 0; rank < on.communicator().size(); ++rank) {
    sends.size_from = out.sizes + rank;
    receives.size_to = in.sizes + rank;
    on.send(from + rank * out.capacity, out.capacity, rank, sends);
    on.recv(to + rank * in.capacity, in.capacity, rank, receives);
  }
  group.end();
}

}  // namespace onehop::patterns

#endif  // ONEHOP_ONEHOP_PATTERNS_HPP_
