// SPDX-License-Identifier: Apache-2.0
//
// EnginePath: puts and gets of device memory that our engine reaches. The calling thread sets the
// engine to work, or for many blocks a kernel, for small ones the GPU's worker, and waits for the
// word behind the last one.
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
