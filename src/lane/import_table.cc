// SPDX-License-Identifier: Apache-2.0
#include "lane/import_table.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace oh {
namespace {
constexpr uint32_t kMostImports = 3u << kernels::kImportShift >> 2;  // so that most find a place
}

bool ImportTable::add(const ImportPlaces::Entry& entry, std::shared_ptr<void> holder) {
  MutexLock lock(mutex_);
  if (places_.has(entry.number)) return true;
  if (imports_.size() >= kMostImports) return false;
  const std::optional<ImportPlaces::Write> write = places_.add(entry);
  if (!write) return false;
  writes_.push_back(*write);
  imports_.push_back({entry.number, std::move(holder)});
  (void)write_all();
  return true;
}

bool ImportTable::has(uint64_t number) {
  MutexLock lock(mutex_);
  return places_.has(number);
}

// A launch can fail for lack of memory; settle() releases nothing until all writes are launched.
bool ImportTable::write_all() {
  while (!writes_.empty() && commands_.write_import(writes_.front()).ok()) writes_.pop_front();
  return writes_.empty();
}

void ImportTable::remove(uint64_t number) {
  MutexLock lock(mutex_);
  auto found = std::find_if(imports_.begin(), imports_.end(),
                            [&](const Import& import) { return import.number == number; });
  if (found == imports_.end()) return;
  for (const ImportPlaces::Write& write : places_.remove(number)) writes_.push_back(write);
  (void)write_all();
  if (found->holder) removed_.push_back(std::move(found->holder));
  imports_.erase(found);
}

bool ImportTable::settle(bool lost) {
  std::vector<std::shared_ptr<void>> gone;  // released without the lock
  MutexLock lock(mutex_);
  if (lost) {
    std::swap(gone, leaving_);
    std::ranges::move(removed_, std::back_inserter(gone));
    removed_.clear();
    return true;
  }
  if (!write_all()) return false;
  if (leaving_.empty() && removed_.empty()) return true;
  if (senders_left()) std::swap(gone, leaving_);
  return leaving_.empty() && removed_.empty();
}

// Whether every sender that began before the entries were removed has ended.
bool ImportTable::senders_left() {
  using onehop::detail::kBusy;
  using onehop::detail::kFailed;
  const bool first = leaving_.empty();
  if (look_ != 0) {
    bool all_left = true;
    for (uint32_t lane = 0; lane < OH_LANES; ++lane) {
      uint64_t state = 0;
      if (!commands_.looked(look_, lane, &state)) return false;
      if (seen_[lane] == UINT64_MAX) seen_[lane] = state;
      // Its holder keeps a half that fails, so kFailed does not mean progress.
      if ((state & kBusy) == 0 || ((state ^ seen_[lane]) & ~kFailed) != 0) seen_[lane] = 0;
      all_left = all_left && seen_[lane] == 0;
    }
    look_ = 0;
    if (all_left && !first) return true;
  } else if (first) {
    std::swap(leaving_, removed_);
    std::fill(std::begin(seen_), std::end(seen_), UINT64_MAX);
  }
  Result<uint64_t> look = commands_.look();
  if (look.ok()) look_ = *look;
  return false;
}

void ImportTable::leak() {
  MutexLock lock(mutex_);
  new std::vector<Import>(std::move(imports_));
  new std::vector<std::shared_ptr<void>>(std::move(leaving_));
  new std::vector<std::shared_ptr<void>>(std::move(removed_));
}

}  // namespace oh
