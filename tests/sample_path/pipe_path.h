// SPDX-License-Identifier: Apache-2.0
//
// PipePath: the sample of docs/adding-a-path.md. Puts and gets of host memory whose bytes go
// through a pipe(2) of the calling process: in at one end from the source, out at the other to the
// target. It is viable where the region can be addressed here: within the process, and in shared
// blocks.
//
// Threading: any thread.
#pragma once

#include "base/sync.h"
#include "path/choice.h"
#include "path/path.h"
#include "path/paths.h"
#include "platform/os/handles.h"

namespace sample {

oh::Estimate estimate_pipe(const oh::LinkFacts& facts, const oh::Ends& ends);

class PipePath final : public oh::Path, public oh::Immediate {
 public:
  explicit PipePath(const oh::PathContext& context);
  static std::unique_ptr<oh::Path> create(const oh::PathContext& context);

  oh::Immediate* immediate() override { return this; }
  oh::Result<oh_path> copy(const oh::Movement& movement) override;

 private:
  oh::Status move(void* to, const void* from, uint64_t size) OH_REQUIRES(mutex_);

  oh::Mutex mutex_;  // one copy at a time
  oh::UniqueFd in_ OH_GUARDED_BY(mutex_);
  oh::UniqueFd out_ OH_GUARDED_BY(mutex_);
};

// kPaths with this path in place of the copy by the calling thread.
extern const oh::PathTable kWithPipe;
// Puts and gets that this process has sent through pipes.
uint64_t copies();

}  // namespace sample
