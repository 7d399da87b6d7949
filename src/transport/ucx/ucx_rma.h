// SPDX-License-Identifier: Apache-2.0
//
// UCX's remote memory access: memory of ours that peers reach by a key, and puts and gets by keys
// of theirs, straight from and to the user's memory.
//
//   owner: UcxMapping ──▶ key() ──▶ initiator: UcxRma::unpack() ──▶ put() | get() ──▶ flush()
//
// A put is through with our memory when its InFlight is over; it has come when a flush that was
// begun behind it is.
//
// Threading: UcxMapping: any thread. UcxRma: guarded by the peer's lock; what UCX calls is guarded
// by the worker's.
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

  // As peers get it.
  const Bytes& key() const { return key_; }

 private:
  explicit UcxMapping(const UcxContext& context) : context_(context) {}

  const UcxContext& context_;
  ucx::Memory memory_ = nullptr;
  Bytes key_;
};

// What UCX has in its hands of one operation, in any number of requests: over whenever there are
// none.
struct RmaInFlight : InFlight {
  RmaInFlight(UcxWorker& of, const char* by) : InFlight(of, by) { over.store(true); }
  uint32_t requests = 0;  // guarded by the worker's lock
};

class UcxRma {
 public:
  explicit UcxRma(UcxEndpoint& endpoint);
  // Whether a card does it, as far as UCX tells. Else UCX emulates it by active messages, and
  // aborts the process when a peer dies in the middle of them.
  bool is_by_card() const;
  UcxRma(const UcxRma&) = delete;
  UcxRma& operator=(const UcxRma&) = delete;

  // Of one call to put() or get().
  static constexpr uint64_t kMostAtOnce = 1 << 20;
  // UCX believes what is in a key (docs/protocol.md, 10).
  static constexpr size_t kLeastKey = 9;  // UCX reads as many of any
  Result<ucx::RemoteKey> unpack(ByteView key);
  // Of a key that no request of UCX's uses any more.
  void destroy(ucx::RemoteKey key);
  // Whether UCX has no request at all.
  bool is_quiet() const;

  struct Piece {
    uint8_t* local;
    uint64_t size;
    uint64_t remote;  // address in its owner
    ucx::RemoteKey key;
  };
  // On behalf of `in_flight`, whose code tells of a failure, which breaks the link. UCX queues
  // without bound: false when it is to be given no more now.
  bool put(const std::shared_ptr<RmaInFlight>& in_flight, const Piece& piece) {
    return move(in_flight, piece, /*put=*/true);
  }
  bool get(const std::shared_ptr<RmaInFlight>& in_flight, const Piece& piece) {
    return move(in_flight, piece, /*put=*/false);
  }
  // Over when all puts before it are visible at the other side.
  std::shared_ptr<InFlight> flush();

 private:
  struct Requests;
  // One of UCX's requests; they are used again and again.
  struct Ticket {
    std::shared_ptr<Requests> owner;  // while UCX has it
    std::shared_ptr<RmaInFlight> in_flight;
    uint64_t size = 0;
  };
  // Outlives the channel where UCX does not let go.
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
