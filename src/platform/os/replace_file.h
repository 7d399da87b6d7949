// SPDX-License-Identifier: Apache-2.0
//
// Files that others read while they are written anew.
//
// Threading: one writer of a path at a time.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "base/status.h"

namespace oh {

// What is written to first, in the same folder: the path and this.
inline constexpr const char* kFreshSuffix = ".new";

// Replaces the file at `path` by what `write` puts into it. A reader finds the former file or the
// whole new one. `mode` is as of open(); `what` begins the text of an error.
Status replace_file(const std::string& path, unsigned mode, const std::string& what,
                    const std::function<void(FILE*)>& write);

}  // namespace oh
