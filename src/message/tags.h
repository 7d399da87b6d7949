// SPDX-License-Identifier: Apache-2.0
//
// Which tags are the user's. Tags above OH_TAG_MAX are the library's own: wildcards do not match
// them.
//
// Threading: values.
#pragma once

#include <cstdint>

#include "onehop/types.h"

namespace oh {

inline constexpr bool is_user_tag(uint64_t tag) { return tag <= OH_TAG_MAX; }
// Of the library's tags, those of MessageBatches::offer_tag().
inline constexpr bool is_offer_tag(uint64_t tag) {
  return !is_user_tag(tag) && tag - OH_TAG_MAX - 1 < uint64_t{1} << 62;
}

}  // namespace oh
