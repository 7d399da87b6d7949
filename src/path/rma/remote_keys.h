// SPDX-License-Identifier: Apache-2.0
//
// RemoteKeys: keys of regions, which UCX needs to put and get. Over UCX only. Until a key has
// arrived, and where there is none, operations travel as messages.
//
//   initiator                               owner
//     attach:               KeyWanted  -->    its region? maps it, once for all peers
//     ASKED                       Key  <--    the key, or why there is none
//     HELD: puts and gets by UCX
//     LEAVING: begins none  RetireKey  <--    deregister: waits
//     all flushed: releases    KeyGone  -->   unmaps when the last peer has released it
//
//   ASKED ─▶ HELD ─▶ LEAVING ─▶ gone          detaching the last handle leads to LEAVING, too
//    │ ▲                │ │                   attached again meanwhile: back to ASKED, or REFUSED
//    │ └────────────────┘ │                   if it was retired
//    └─▶ REFUSED ◀────────┘
//           └──────────────────▶ gone
//
// Threading: guarded by the link's lock, but for map_region().
#pragma once

#include <deque>
#include <map>
#include <memory>

#include "link/link.h"
#include "link/regions.h"
#include "path/rma_use.h"
#include "transport/ucx/ucx_rma.h"

namespace oh {

// A key of the other side's region.
struct RemoteKey {
  enum class State { kAsked, kHeld, kLeaving, kRefused };

  uint32_t region = 0;
  uint64_t version = 0;
  State state = State::kAsked;
  bool retired = false;   // the other side revokes it
  uint32_t attached = 0;  // handles of our user's
  ucx::RemoteKey key = nullptr;
  std::shared_ptr<InFlight> flush;  // behind all that used it
};

// Maps a region of ours for UCX, or finds that it is mapped. Any thread, without the link's lock.
Result<std::shared_ptr<UcxMapping>> map_region(const RegionRecord& region,
                                               const UcxContext& context);

class RemoteKeys {
 public:
  // Of one link, in either direction.
  static constexpr size_t kMost = 4096;

  explicit RemoteKeys(Link& link) : link_(link) {}
  ~RemoteKeys() { fail_all(); }
  // Over UCX. Keys are requested and granted from now on, if `use` and the link are for it.
  void open(UcxChannel& channel, RmaUse use);
  bool is_open() const { return rma_ != nullptr; }
  UcxRma& rma() { return *rma_; }
  RmaUse use() const { return use_; }

  // Our user's handles of a region of the other side.
  void attach(uint32_t region, uint64_t version);
  void detach(uint64_t version);
  // Null: none was requested.
  std::shared_ptr<RemoteKey> find(uint32_t region, uint64_t version) const;

  // Sends answers, and releases keys that nothing uses any more.
  bool progress();
  bool idle() const { return wanted_.empty() && answers_.empty() && leaving_ == 0; }
  void fail_all();

  // A region of ours that a peer wants and that is not being mapped yet: the caller maps it, and
  // reports the result by mapped(). Null: none.
  std::shared_ptr<RegionRecord> next_to_map();
  void mapped(const std::shared_ptr<RegionRecord>& region, bool valid,
              Result<std::shared_ptr<UcxMapping>> mapping);
  // The region is retired: no key of it is granted, and the peer is to release the one it has.
  void retire(const RegionRecord& region);
  // Whether it has.
  bool has_left(const RegionRecord& region) const;

  // `region` is null where there is none of that name.
  Status on_wanted(const Frame& frame, std::shared_ptr<RegionRecord> region);
  Status on_key(const Frame& frame);
  // The key that is revoked, so that nothing more begins with it; null: we have none.
  std::shared_ptr<RemoteKey> on_retired(const Frame& frame);
  void on_gone(const Frame& frame);

 private:
  // A region of ours whose key the peer has.
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
  std::shared_ptr<RegionRecord> mapping_;  // while a thread of ours maps it
  std::deque<uint64_t> answers_;           // versions of those given, whose key is not sent yet
};

}  // namespace oh
