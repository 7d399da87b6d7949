// SPDX-License-Identifier: Apache-2.0
//
// The table of paths: one row each. Everything that goes over all paths goes over this table.
//
// Threading: none needed.
#pragma once

#include <array>
#include <memory>

#include "path/choice.h"
#include "path/path.h"

namespace oh {

struct PathEntry {
  // What it would cost between two ends, of what both sides of a link can do.
  Estimate (*estimate)(const LinkFacts& facts, const Ends& ends);
  // The path of one link; null: that link has nothing for it.
  std::unique_ptr<Path> (*create)(const PathContext& context);
};

// By PathName.
using PathTable = std::array<PathEntry, kPathCount>;
extern const PathTable kPaths;

// The path that a frame of an operation of the other side is for.
PathName path_for(const Frame& frame);

// The table of links that are made from now on: kPaths, unless a test has given another one.
const PathTable& path_table();
// Null: kPaths again.
void use_path_table(const PathTable* table);

}  // namespace oh
