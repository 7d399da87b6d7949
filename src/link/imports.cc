// SPDX-License-Identifier: Apache-2.0
#include "link/imports.h"

#include <utility>

namespace oh {
namespace {
// How long a block may arrive after its number.
constexpr int64_t kOnItsWay = 5 * kMillisecond;
constexpr int64_t kAsked = INT64_MAX;
}  // namespace

Imports::Block Imports::find(uint32_t number) {
  auto found = entries_.find(number);
  if (found == entries_.end()) return nullptr;
  found->second.used = ++uses_;
  return found->second.block;
}

bool Imports::failed(uint32_t number) const {
  auto found = entries_.find(number);
  return found != entries_.end() && found->second.failed;
}

std::vector<Imports::Block> Imports::on_device() const {
  std::vector<Block> blocks;
  for (const auto& [number, entry] : entries_) {
    if (entry.block && entry.block->on_device) blocks.push_back(entry.block);
  }
  return blocks;
}

Imports::Block Imports::add(uint32_t number, Block block) {
  Block gone = retire(number);
  // Entries without a block do not accumulate.
  if (entries_.size() >= 2 * kMost) {
    std::erase_if(entries_, [](const auto& entry) { return !entry.second.block; });
  }
  Entry& entry = entries_[number];
  entry.used = ++uses_;
  entry.failed = !block;
  entry.block = std::move(block);
  if (entry.block) ++mapped_;
  if (!entry.block || !entry.block->on_device) return gone;
  ++on_device_;
  return gone ? gone : make_room();
}

// Removes and returns the least recently used block of device memory, if too many are mapped.
Imports::Block Imports::make_room() {
  if (on_device_ <= limit_) return nullptr;
  Entry* oldest = nullptr;
  for (auto& [number, entry] : entries_) {
    bool free = entry.block && entry.block->on_device && entry.block.use_count() == 1 &&
                entry.block->attached.load(std::memory_order_relaxed) == 0;
    if (free && entry.used != uses_ && (!oldest || entry.used < oldest->used)) oldest = &entry;
  }
  if (!oldest) return nullptr;
  --on_device_;
  --mapped_;
  oldest->ask_at = 0;  // its next user requests it at once
  return std::exchange(oldest->block, nullptr);
}

Imports::Block Imports::retire(uint32_t number) {
  auto found = entries_.find(number);
  if (found == entries_.end()) return nullptr;
  Block gone = std::move(found->second.block);
  if (gone) --mapped_;
  if (gone && gone->on_device) --on_device_;
  entries_.erase(found);
  return gone;
}

bool Imports::should_ask(uint32_t number) {
  int64_t now = now_ns();
  auto [found, added] = entries_.try_emplace(number);
  Entry& entry = found->second;
  if (added) entry.ask_at = now + kOnItsWay;
  if (entry.block || entry.failed || now < entry.ask_at) return false;
  entry.ask_at = kAsked;
  return true;
}

void Imports::forget_failure(uint32_t number) {
  auto found = entries_.find(number);
  if (found != entries_.end() && found->second.failed) entries_.erase(found);
}

}  // namespace oh
