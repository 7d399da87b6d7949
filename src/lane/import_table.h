// SPDX-License-Identifier: Apache-2.0
//
// ImportTable: the peer's memory that kernels may put into, by its number. Kernels read the table
// in the slab while it changes; an entry that is removed keeps its memory until no kernel that
// began before can still use it.
//
// Threading: any thread.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "base/sync.h"
#include "lane/import_places.h"
#include "lane/lane_commands.h"

namespace oh {

class ImportTable {
 public:
  explicit ImportTable(LaneCommands& commands) : commands_(commands) {}

  // `holder` keeps the memory mapped. When the table is full the entry is left out: messages to
  // such memory are staged.
  void add(const ImportPlaces::Entry& entry, std::shared_ptr<void> holder);
  // Kernels that begin later do not use it; settle() must follow.
  void remove(uint64_t number);
  // Releases removed entries that no kernel uses. False: some are left, or are not overwritten yet;
  // call again. `lost`: the GPU is, and no kernel runs.
  bool settle(bool lost);
  // Kernels that do not end may use all of it: nothing of it is ever released.
  void leak();

 private:
  struct Import {
    uint64_t number = 0;
    std::shared_ptr<void> holder;
  };
  bool write_all() OH_REQUIRES(mutex_);
  bool senders_left() OH_REQUIRES(mutex_);

  LaneCommands& commands_;
  Mutex mutex_;  // held while the table is written
  // In order, from the first whose launch failed: the next call tries again.
  std::deque<ImportPlaces::Write> writes_ OH_GUARDED_BY(mutex_);
  std::vector<Import> imports_ OH_GUARDED_BY(mutex_);
  ImportPlaces places_ OH_GUARDED_BY(mutex_) = ImportPlaces(kernels::kImportShift);
  // Removed: until every sender was seen idle, or further than it was.
  std::vector<std::shared_ptr<void>> removed_ OH_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<void>> leaving_ OH_GUARDED_BY(mutex_);
  uint64_t look_ OH_GUARDED_BY(mutex_) = 0;             // serial of the look in progress; 0: none
  uint64_t seen_[OH_LANES] OH_GUARDED_BY(mutex_) = {};  // states of senders; 0: it has left
};

}  // namespace oh
