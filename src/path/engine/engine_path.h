// SPDX-License-Identifier: Apache-2.0
//
// EnginePath: puts and gets that involve device memory and whose two ends the local engine reaches.
// The calling thread enqueues copies at the engine, launches a kernel for many blocks, or passes a
// small block to the GPU's worker. Then it waits for the word that the device writes after the last
// copy.
//
// Threading: any thread.
#pragma once

#include "path/choice.h"
#include "path/path.h"

namespace oh {

Estimate estimate_engine(const LinkFacts& facts, const Ends& ends);

class EnginePath final : public Path, public Immediate {
 public:
  using Path::Path;
  Immediate* immediate() override { return this; }
  Result<oh_path> copy(const Movement& movement) override;
  std::unique_ptr<BatchPlan> plan(const Movement& movement) override;

 private:
  bool wants_kernels(const Movement& movement) const;
  bool admits_kernels(const Part& part) const;
  Worker* worker_for(const Movement& movement) const;
};

}  // namespace oh
