// SPDX-License-Identifier: Apache-2.0
//
// A live peer of ours whose other side is the fuzzer: behind a segment, a socket, or UCX. It sends
// and receives while the other side says what it likes.
#pragma once

#include <deque>
#include <memory>

#include "endpoint/endpoint.h"
#include "fuzz/fuzz.h"

namespace fuzz {

class Victim {
 public:
  // `reach`: bit 0, we can copy from and to the other side; bit 1, it says that it can. Without a
  // segment `ucx` may carry the frames.
  Victim(bool segment, int reach, std::unique_ptr<oh::UcxChannel> ucx = nullptr);
  // Ends all operations, and requires that they have ended.
  ~Victim();

  // The endpoint of all victims. Its sockets take longer to make than most inputs take, so a fuzzer
  // keeps it.
  static std::shared_ptr<oh::Endpoint> shared_endpoint();

  oh::Endpoint& endpoint() { return *endpoint_; }
  oh::Peer& peer() { return *peer_; }
  // What the other side may use.
  const oh::RegionRecord& region() const { return *region_; }
  // The other side's view of the segment, or nullptr.
  oh::Segment* segment() { return theirs_.get(); }

  void post_recv(uint64_t tag, size_t capacity, bool any_source);
  void post_send(uint64_t tag, size_t size);
  // `to_device`: to or from memory of a device over there.
  void post_one_sided(bool put, size_t size, bool notify, bool to_device = false);
  // Operations that had not ended when progress was made last.
  size_t pending() const { return operations_.size(); }
  void cancel_oldest(bool give_up);
  void progress();
  void collect();
  // A message on the socket; without a segment only.
  void hear(uint8_t type, oh::ByteView payload, bool with_fd);

 private:
  struct Operation {
    oh::Request request;
    std::unique_ptr<uint8_t[]> buffer;  // exactly as large as the operation
  };
  Operation& begin(oh::OpKind kind, uint64_t tag, size_t size);
  void tidy();

  std::shared_ptr<oh::Endpoint> endpoint_;
  std::unique_ptr<uint8_t[]> memory_;  // of a region that the other side may use
  std::shared_ptr<oh::RegionRecord> region_;
  std::unique_ptr<oh::Segment> theirs_;
  oh::UniqueFd their_socket_;
  std::shared_ptr<oh::Peer> peer_;
  std::deque<std::unique_ptr<Operation>> operations_;
};

}  // namespace fuzz
