// SPDX-License-Identifier: Apache-2.0
//
// CopyPath: puts and gets of host memory that the calling thread copies: through a mapped block, by
// process_vm_readv/writev, or by plain addresses within one process.
//
// Threading: any thread.
#pragma once

#include "path/choice.h"
#include "path/path.h"

namespace oh {

Estimate estimate_copy(const LinkFacts& facts, const Ends& ends);

class CopyPath final : public Path, public Immediate {
 public:
  using Path::Path;
  Immediate* immediate() override { return this; }
  Result<oh_path> copy(const Movement& movement) override;
  bool slices() const override { return true; }
};

}  // namespace oh
