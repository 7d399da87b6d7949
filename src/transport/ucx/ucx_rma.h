// SPDX-License-Identifier: Apache-2.0
//
// UCX's remote memory access (RMA): registers local memory that peers access by a key, and puts and
// gets by the peer's keys, directly from and to the user's memory.
//
//   owner: UcxMapping ──▶ key() ──▶ initiator: UcxRma::unpack() ──▶ put() | get() ──▶ flush()
//
// When a put's InFlight is over, its local buffer is free. When a flush that began after the put is
// over, the put is complete at the target.
//
// Threading: UcxMapping: any thread. UcxRma: guarded by the link's lock; UCX's callbacks are
// guarded by the worker's lock.
#pragma once

#include <memory>
#include <vector>

#include "transport/ucx/ucx_endpoint.h"
#include "transport/ucx/ucx_in_flight.h"

namespace oh {

class UcxMapping {
 public:
  static Result<std::shared_ptr<UcxMapping>> create(const UcxContext& context, uint8_t* base,
                                                    uint64_t length);
  ~UcxMapping();
  UcxMapping(const UcxMapping&) = delete;
  UcxMapping& operator=(const UcxMapping&) = delete;

  // The packed key for peers.
  const Bytes& key() const { return key_; }

 private:
  explicit UcxMapping(const UcxContext& context) : context_(context) {}

  const UcxContext& context_;
  ucx::Memory memory_ = nullptr;
  Bytes key_;
};

// The requests of one operation that UCX has in flight, in any number; over while there are none.
struct RmaInFlight : InFlight {
  RmaInFlight(UcxWorker& of, const char* by) : InFlight(of, by) { over.store(true); }
  uint32_t requests = 0;  // guarded by the worker's lock
};

class UcxRma {
 public:
  explicit UcxRma(UcxEndpoint& endpoint);
  // Whether UCX reports an RDMA transport for the link. Otherwise UCX emulates RMA by active
  // messages, and may abort the process when a peer dies during an operation.
  bool is_by_card() const;
  UcxRma(const UcxRma&) = delete;
  UcxRma& operator=(const UcxRma&) = delete;

  // Maximum bytes of one put() or get().
  static constexpr uint64_t kMostAtOnce = 1 << 20;
  // Unpacks a peer's key. UCX trusts its contents (docs/protocol.md, 10).
  static constexpr size_t kLeastKey = 9;  // bytes that UCX reads of any key
  Result<ucx::RemoteKey> unpack(ByteView key);
  // Destroys a key. Precondition: no request of UCX uses it.
  void destroy(ucx::RemoteKey key);
  // Whether no request is in flight.
  bool is_quiet() const;

  struct Piece {
    uint8_t* local;
    uint64_t size;
    uint64_t remote;  // address in the owner's process
    ucx::RemoteKey key;
  };
  // Start a put or get as part of `in_flight`. A failure sets its code and breaks the link. False:
  // too many requests or bytes are in flight; UCX itself queues without bound.
  bool put(const std::shared_ptr<RmaInFlight>& in_flight, const Piece& piece) {
    return move(in_flight, piece, /*put=*/true);
  }
  bool get(const std::shared_ptr<RmaInFlight>& in_flight, const Piece& piece) {
    return move(in_flight, piece, /*put=*/false);
  }
  // Starts a flush, which is over when all earlier puts are visible at the target.
  std::shared_ptr<InFlight> flush();

 private:
  struct Requests;
  // The context of one UCX request; reused.
  struct Ticket {
    std::shared_ptr<Requests> owner;  // while it is in flight
    std::shared_ptr<RmaInFlight> in_flight;
    uint64_t size = 0;
  };
  // Outlives the channel while UCX still has requests.
  struct Requests {
    uint32_t count = 0;
    uint64_t bytes = 0;
    std::vector<std::unique_ptr<Ticket>> tickets;
    std::vector<Ticket*> free;
  };

  bool move(const std::shared_ptr<RmaInFlight>& in_flight, const Piece& piece, bool put);
  static void on_moved(void* request, ucx::Code code, void* context);

  UcxEndpoint& endpoint_;
  std::shared_ptr<UcxWorker> worker_;
  std::shared_ptr<Requests> requests_;  // guarded by the worker's lock
};

}  // namespace oh
