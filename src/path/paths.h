// SPDX-License-Identifier: Apache-2.0
//
// The table of paths, one row each. Code that handles all paths iterates over it.
//
// Threading: none needed.
#pragma once

#include <array>
#include <memory>

#include "path/choice.h"
#include "path/path.h"

namespace oh {

struct PathEntry {
  // Estimates the cost between two ends from the capabilities of the link.
  Estimate (*estimate)(const LinkFacts& facts, const Ends& ends);
  // Creates the path for one link. Null: not viable on that link.
  std::unique_ptr<Path> (*create)(const PathContext& context);
};

// Indexed by PathName.
using PathTable = std::array<PathEntry, kPathCount>;
extern const PathTable kPaths;

// The path that handles an incoming one-sided frame.
PathName path_for(const Frame& frame);

// The table for links created from now on: kPaths, unless a test has installed another one.
const PathTable& path_table();
// Null: restores kPaths.
void use_path_table(const PathTable* table);

}  // namespace oh
