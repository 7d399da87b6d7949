// SPDX-License-Identifier: Apache-2.0
#include "link/tags.h"

#include "base/status.h"

namespace oh {

std::string tag_text(uint64_t tag) {
  if (tag == OH_ANY_TAG) return "any tag";
  if (is_user_tag(tag)) return strf("tag %llu", static_cast<unsigned long long>(tag));
  if (is_offer_tag(tag)) return "the tag of a batch";
  return tag < kStreamTags ? "the tag of a barrier" : "the tag of a stream";
}

}  // namespace oh
