// SPDX-License-Identifier: Apache-2.0
//
// EnginePath: puts and gets that involve device memory and whose two ends the local engine reaches.
// The calling thread enqueues copies at the engine, launches a kernel for many blocks, or passes a
// small block to the GPU's worker. Then it waits for the word that the device writes after the last
// copy. Shared host memory is registered with the driver at its first use.
//
// Threading: any thread.
#pragma once

#include "kernels/batch.h"
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
  // How the device accesses the two ends of a part.
  struct Access {
    uint64_t most = 0;          // the largest block that a kernel may copy; 0: none
    uint64_t local_shift = 0;   // of a host address to the device's address for it
    uint64_t remote_shift = 0;  // likewise; in this process or mapped here
    PinnedView host = {};       // keeps host memory mapped and registered
  };
  bool wants_kernels(const Movement& movement) const;
  bool kernels_reach_local(const Part& part) const;
  bool kernels_reach_target(const Part& part) const;
  Access access(const Part& part, bool wanted) const;
  static Result<kernels::BatchBlock> placed(const Part& part, const Block& block,
                                            const Access& access, bool put);
  Worker* worker_for(const Movement& movement) const;
};

}  // namespace oh
