// SPDX-License-Identifier: Apache-2.0
//
// User tags and internal tags. Tags above OH_TAG_MAX are internal: wildcards do not match them.
//
// Threading: values.
#pragma once

#include <cstdint>

#include "onehop/types.h"

namespace oh {

inline constexpr bool is_user_tag(uint64_t tag) { return tag <= OH_TAG_MAX; }
// Whether it is an internal tag made by MessageBatches::offer_tag().
inline constexpr bool is_offer_tag(uint64_t tag) {
  return !is_user_tag(tag) && tag - OH_TAG_MAX - 1 < uint64_t{1} << 62;
}

}  // namespace oh
