// SPDX-License-Identifier: Apache-2.0
//
// ImportTable: the peer's memory that kernels may put into, keyed by region number. Kernels read
// the table in the slab while it changes. The memory of a removed entry stays mapped until no
// kernel that began before the removal can still use it.
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
  // such memory are staged. Returns whether the entry is in the table.
  bool add(const ImportPlaces::Entry& entry, std::shared_ptr<void> holder);
  bool has(uint64_t number);
  // Kernels that begin later do not find the entry. Call settle() afterwards.
  void remove(uint64_t number);
  // Releases removed entries that no kernel uses. False: some remain, or are not overwritten yet;
  // call again. `lost`: the GPU is lost, so no kernel runs.
  bool settle(bool lost);
  // Never releases the memory: kernels that do not end may use all of it.
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
  // Writes whose launch has not succeeded, in order; the next call retries them.
  std::deque<ImportPlaces::Write> writes_ OH_GUARDED_BY(mutex_);
  std::vector<Import> imports_ OH_GUARDED_BY(mutex_);
  ImportPlaces places_ OH_GUARDED_BY(mutex_) = ImportPlaces(kernels::kImportShift);
  // Memory of removed entries. leaving_ is released once every sender was seen idle or further on;
  // the memory in removed_ moves to leaving_ then.
  std::vector<std::shared_ptr<void>> removed_ OH_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<void>> leaving_ OH_GUARDED_BY(mutex_);
  uint64_t look_ OH_GUARDED_BY(mutex_) = 0;             // serial of the query in progress; 0: none
  uint64_t seen_[OH_LANES] OH_GUARDED_BY(mutex_) = {};  // senders' first states; 0: has left
};

}  // namespace oh
