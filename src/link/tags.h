// SPDX-License-Identifier: Apache-2.0
//
// User tags and internal tags. Tags above OH_TAG_MAX are internal: wildcards do not match them.
//
//   0 ... OH_TAG_MAX │ kOfferTags: batches │ kBarrierTags │ kStreamTags: by proxy ... OH_ANY_TAG
//
// Threading: values.
#pragma once

#include <cstdint>
#include <string>

#include "onehop/types.h"

namespace oh {

inline constexpr uint64_t kOfferTags = OH_TAG_MAX + 1;
inline constexpr uint64_t kBarrierTags = kOfferTags + (uint64_t{1} << 62);
inline constexpr uint64_t kStreamTags = kOfferTags + (uint64_t{3} << 61);

inline constexpr bool is_user_tag(uint64_t tag) { return tag <= OH_TAG_MAX; }
// Whether it is an internal tag made by MessageBatches::offer_tag().
inline constexpr bool is_offer_tag(uint64_t tag) { return tag >= kOfferTags && tag < kBarrierTags; }

// Its name in error texts.
std::string tag_text(uint64_t tag);

}  // namespace oh
