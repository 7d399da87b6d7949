// SPDX-License-Identifier: Apache-2.0
#include "path/rma/remote_keys.h"

#include <algorithm>
#include <utility>

#include "base/log.h"

namespace oh {

Result<std::shared_ptr<UcxMapping>> map_region(const RegionRecord& region,
                                               const UcxContext& context) {
  MutexLock lock(region.mapping_mutex);
  std::shared_ptr<UcxMapping> mapping = region.mapping.lock();
  if (mapping) return mapping;
  OH_ASSIGN_OR_RETURN(mapping, UcxMapping::create(context, region.base, region.length));
  region.mapping = mapping;
  return mapping;
}

void RemoteKeys::open(UcxChannel& channel, RmaUse use) {
  if (use == RmaUse::kOff || !channel.worker().context().has_rma()) return;
  auto rma = std::make_unique<UcxRma>(channel.endpoint());
  if (use == RmaUse::kAuto && !rma->is_by_card()) return;
  rma_ = std::move(rma);
  use_ = use;
}

void RemoteKeys::send(FrameType type, uint32_t region, uint64_t version, oh_status status) {
  Frame frame;
  frame.type = type;
  frame.region = region;
  frame.tag = version;
  frame.aux = static_cast<uint32_t>(status);
  link_.send(frame);
}

// ---- The initiator's side ---------------------------------------------------------------------

void RemoteKeys::attach(uint32_t region, uint64_t version) {
  if (!rma_) return;
  std::shared_ptr<RemoteKey>& key = keys_[version];
  if (!key) {
    key = std::make_shared<RemoteKey>();
    key->region = region;
    key->version = version;
    send(FrameType::kKeyWanted, region, version);
  }
  ++key->attached;
}

void RemoteKeys::detach(uint64_t version) {
  auto found = keys_.find(version);
  if (found == keys_.end()) return;
  RemoteKey& key = *found->second;
  if (--key.attached > 0) return;
  if (key.state == RemoteKey::State::kRefused) keys_.erase(found);
  // A key that was requested is released once it has arrived.
  else if (key.state == RemoteKey::State::kHeld)
    leave(key);
}

std::shared_ptr<RemoteKey> RemoteKeys::find(uint32_t region, uint64_t version) const {
  auto found = keys_.find(version);
  return found == keys_.end() || found->second->region != region ? nullptr : found->second;
}

Status RemoteKeys::on_key(const Frame& frame) {
  std::shared_ptr<RemoteKey> key = find(frame.region, frame.tag);
  if (!key || key->state != RemoteKey::State::kAsked) {
    return error(OH_ERR_PROTOCOL, "%s sent a key that was not requested", link_.name.c_str());
  }
  if (frame.aux == 0 && frame.payload_size < UcxRma::kLeastKey) {
    return error(OH_ERR_PROTOCOL, "%s sent a key of %zu bytes", link_.name.c_str(),
                 frame.payload_size);
  }
  if (frame.aux == 0) {
    Result<ucx::RemoteKey> unpacked = rma_->unpack({frame.payload, frame.payload_size});
    if (unpacked.ok()) {
      key->key = *unpacked;
      key->state = RemoteKey::State::kHeld;
      if (key->attached == 0) leave(*key);
      return {};
    }
    OH_LOG(kWarn, "puts and gets of a region of %s go as messages: %s", link_.name.c_str(),
           unpacked.status().text().c_str());
    send(FrameType::kKeyGone, key->region, key->version);
  }
  key->state = RemoteKey::State::kRefused;
  if (key->attached == 0) keys_.erase(key->version);
  return {};
}

void RemoteKeys::leave(RemoteKey& key) {
  key.state = RemoteKey::State::kLeaving;
  ++leaving_;
}

std::shared_ptr<RemoteKey> RemoteKeys::on_retired(const Frame& frame) {
  std::shared_ptr<RemoteKey> key = find(frame.region, frame.tag);
  // This side may have released the key already: its KeyGone is in flight.
  if (!key || !key->key) return nullptr;
  key->retired = true;
  if (key->state == RemoteKey::State::kHeld) leave(*key);
  return key;
}

// Releases the key once a flush is over. True when it is released.
bool RemoteKeys::let_go(RemoteKey& key) {
  if (!key.flush) key.flush = rma_->flush();
  if (!key.flush->is_over()) return false;
  if (key.flush->code != ucx::kOk) {
    (void)link_.ucx->broken_by(*key.flush).ok();
    return false;
  }
  rma_->destroy(std::exchange(key.key, nullptr));
  send(FrameType::kKeyGone, key.region, key.version);
  return true;
}

bool RemoteKeys::progress() {
  bool any = false;
  while (!answers_.empty() && link_.outbox.empty()) {
    auto given = given_.find(answers_.front());
    if (given != given_.end()) {
      const Bytes& packed = given->second.mapping->key();
      Frame frame;
      frame.type = FrameType::kKey;
      frame.region = given->second.region->index;
      frame.tag = given->first;
      frame.payload = packed.data();
      frame.payload_size = packed.size();
      if (!link_.push(frame)) break;
      any = true;
    }
    answers_.pop_front();
  }
  if (leaving_ == 0) return any;
  for (auto next = keys_.begin(); next != keys_.end();) {
    auto at = next++;
    std::shared_ptr<RemoteKey>& key = at->second;
    // Operations that still use a key hold a reference to it.
    if (key->state != RemoteKey::State::kLeaving || key.use_count() > 1 || !let_go(*key)) continue;
    any = true;
    --leaving_;
    if (key->attached == 0) {
      keys_.erase(at);
    } else if (key->retired) {
      key->state = RemoteKey::State::kRefused;
    } else {  // attached again meanwhile
      key->state = RemoteKey::State::kAsked;
      key->flush.reset();
      send(FrameType::kKeyWanted, key->region, key->version);
    }
  }
  return any;
}

// ---- The owner's side -------------------------------------------------------------------------

Status RemoteKeys::on_wanted(const Frame& frame, std::shared_ptr<RegionRecord> region) {
  const bool twice = given_.contains(frame.tag) ||
                     (region && (region == mapping_ || std::ranges::count(wanted_, region)));
  if (twice) {
    return error(OH_ERR_PROTOCOL, "%s asks twice for the key of region %u", link_.name.c_str(),
                 frame.region);
  }
  oh_status refusal = OH_OK;
  if (!rma_ || (region && (region->exported || region->for_batch()))) {
    refusal = OH_ERR_NOT_VIABLE;
  } else if (!region) {
    refusal = OH_ERR_RETIRED;
  } else if (given_.size() + wanted_.size() + (mapping_ ? 1 : 0) >= kMost) {
    refusal = OH_ERR_NO_RESOURCE;
  }
  if (refusal == OH_OK) {
    wanted_.push_back(std::move(region));
  } else {
    send(FrameType::kKey, frame.region, frame.tag, refusal);
  }
  return {};
}

std::shared_ptr<RegionRecord> RemoteKeys::next_to_map() {
  if (wanted_.empty() || mapping_) return nullptr;
  mapping_ = std::move(wanted_.front());
  wanted_.pop_front();
  return mapping_;
}

void RemoteKeys::mapped(const std::shared_ptr<RegionRecord>& region, bool valid,
                        Result<std::shared_ptr<UcxMapping>> mapping) {
  mapping_.reset();
  if (!rma_) return;  // the link has ended
  oh_status refusal = valid ? mapping.status().code() : OH_ERR_RETIRED;
  if (refusal == OH_OK && (*mapping)->key().size() > link_.channel->max_payload()) {
    refusal = OH_ERR_NOT_VIABLE;
  }
  if (refusal != OH_OK) {
    OH_LOG(kInfo, "no key of region %u for %s: %s", region->index, link_.name.c_str(),
           valid ? mapping.status().text().c_str() : status_text(refusal));
    return send(FrameType::kKey, region->index, region->version, refusal);
  }
  given_.emplace(region->version, Given{region, std::move(*mapping)});
  answers_.push_back(region->version);
}

void RemoteKeys::retire(const RegionRecord& region) {
  std::erase_if(wanted_, [&](const auto& wanted) {
    if (wanted.get() != &region) return false;
    send(FrameType::kKey, region.index, region.version, OH_ERR_RETIRED);
    return true;
  });
  if (!given_.contains(region.version)) return;
  // The peer has not seen a key that was not sent yet.
  if (std::erase(answers_, region.version) > 0) {
    given_.erase(region.version);
    send(FrameType::kKey, region.index, region.version, OH_ERR_RETIRED);
  } else {
    send(FrameType::kRetireKey, region.index, region.version);
  }
}

bool RemoteKeys::has_left(const RegionRecord& region) const {
  return mapping_.get() != &region && !given_.contains(region.version);
}

void RemoteKeys::on_gone(const Frame& frame) { given_.erase(frame.tag); }

// The link has ended: no remote put or get arrives any more, and no local one begins.
void RemoteKeys::fail_all() {
  if (!rma_) return;
  given_.clear();
  wanted_.clear();
  answers_.clear();
  leaving_ = 0;
  // Keys that UCX may still use are released when the link is disconnected.
  if (!rma_->is_quiet()) return;
  for (auto& [version, key] : keys_) {
    if (key->key) rma_->destroy(key->key);
  }
  keys_.clear();
  rma_.reset();
}

}  // namespace oh
