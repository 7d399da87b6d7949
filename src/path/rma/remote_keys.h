// SPDX-License-Identifier: Apache-2.0
//
// RemoteKeys: the keys of regions that puts and gets by UCX RMA need. Over UCX only. Without a key
// operations travel as messages; with RmaUse::kOn they wait for a key that was requested.
//
//   initiator                               owner
//     attach:               KeyWanted  -->    valid region: maps it, once for all peers
//     ASKED                       Key  <--    the key, or an error
//     HELD: puts and gets by UCX
//     LEAVING: no new ops   RetireKey  <--    deregister: waits
//     all flushed: releases    KeyGone  -->   unmaps when the last peer has released it
//
//   ASKED ─▶ HELD ─▶ LEAVING ─▶ gone          detaching the last handle leads to LEAVING, too
//    │ ▲                │ │                   attached again meanwhile: back to ASKED, or REFUSED
//    │ └────────────────┘ │                   if it was retired
//    └─▶ REFUSED ◀────────┘
//           └──────────────────▶ gone
//
// Threading: guarded by the link's lock, except map_region().
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "link/link.h"
#include "link/regions.h"
#include "path/rma_use.h"
#include "transport/ucx/ucx_rma.h"

namespace oh {

// The key of a remote region.
struct RemoteKey {
  enum class State { kAsked, kHeld, kLeaving, kRefused };

  uint32_t region = 0;
  uint64_t version = 0;
  State state = State::kAsked;
  bool retired = false;   // the peer has revoked it
  uint32_t attached = 0;  // handles that the local user holds
  ucx::RemoteKey key = nullptr;
  std::shared_ptr<InFlight> flush;  // issued after all operations that used the key
};

// Maps a local region for UCX, or returns its mapping if it has one. Any thread, without the link's
// lock.
Result<std::shared_ptr<UcxMapping>> map_region(const RegionRecord& region,
                                               const UcxContext& context);

class RemoteKeys {
 public:
  // Most keys of local regions that the peer of one link may hold or request.
  static constexpr size_t kMost = 4096;

  explicit RemoteKeys(Link& link) : link_(link) {}
  ~RemoteKeys() { fail_all(); }
  // Called over UCX: keys are requested and granted from now on, if `use` and the link's transport
  // allow it.
  void open(UcxChannel& channel, RmaUse use);
  bool is_open() const { return rma_ != nullptr; }
  UcxRma& rma() { return *rma_; }
  RmaUse use() const { return use_; }

  // Count the local user's handles of a remote region. The first one requests its key; the key is
  // released after the last one.
  void attach(uint32_t region, uint64_t version);
  void detach(uint64_t version);
  // Null: no key was requested.
  std::shared_ptr<RemoteKey> find(uint32_t region, uint64_t version) const;

  // Sends granted keys, and releases keys that nothing uses any more.
  bool progress();
  bool idle() const { return wanted_.empty() && answers_.empty() && leaving_ == 0; }
  void fail_all();

  // The next local region whose key the peer has requested. The caller maps it and passes the
  // result to mapped(). Null: none, or one is being mapped.
  std::shared_ptr<RegionRecord> next_to_map();
  void mapped(const std::shared_ptr<RegionRecord>& region, bool valid,
              Result<std::shared_ptr<UcxMapping>> mapping);
  // The region is retired: grants no key of it, and asks the peer to release the one it holds.
  void retire(const RegionRecord& region);
  // Whether the peer holds no key of the region, and no thread maps it.
  bool has_left(const RegionRecord& region) const;

  // `region`: null if no such region is valid.
  Status on_wanted(const Frame& frame, std::shared_ptr<RegionRecord> region);
  Status on_key(const Frame& frame);
  // Returns the revoked key, with which the caller must begin no more operations. Null: this side
  // holds none.
  std::shared_ptr<RemoteKey> on_retired(const Frame& frame);
  void on_gone(const Frame& frame);

 private:
  // A local region whose key was granted to the peer.
  struct Given {
    std::shared_ptr<RegionRecord> region;
    std::shared_ptr<UcxMapping> mapping;
  };

  void send(FrameType type, uint32_t region, uint64_t version, oh_status status = OH_OK);
  void leave(RemoteKey& key);
  bool let_go(RemoteKey& key);

  Link& link_;
  std::unique_ptr<UcxRma> rma_;
  RmaUse use_ = RmaUse::kOff;
  // By version, which an endpoint never uses twice.
  std::map<uint64_t, std::shared_ptr<RemoteKey>> keys_;
  size_t leaving_ = 0;
  std::map<uint64_t, Given> given_;
  std::deque<std::shared_ptr<RegionRecord>> wanted_;
  std::shared_ptr<RegionRecord> mapping_;  // while a local thread maps it
  std::deque<uint64_t> answers_;           // versions of granted keys that are not sent yet
};

}  // namespace oh
