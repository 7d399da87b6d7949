// SPDX-License-Identifier: Apache-2.0
//
// Atomic replacement of files that other processes read.
//
// Threading: one writer of a path at a time.
#pragma once

#include <cstdio>
#include <functional>
#include <string>

#include "base/status.h"

namespace oh {

// Suffix of the temporary file, in the same folder.
inline constexpr const char* kFreshSuffix = ".new";

// Replaces the file at `path` with the output of `write`. A reader finds either the previous or the
// complete new file. `mode` is as for open(); `what` starts the error text.
Status replace_file(const std::string& path, unsigned mode, const std::string& what,
                    const std::function<void(FILE*)>& write);

}  // namespace oh
