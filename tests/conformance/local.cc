// SPDX-License-Identifier: Apache-2.0
#include "conformance/sides.h"

namespace conformance {

std::vector<LinkKind> local_kinds() {
  LinkKind threads{.name = "threads", .processes = false, .path = OH_PATH_LOCAL};
  LinkKind shared = threads.with(MemoryKind::kShared);
  shared.name += "_shared_memory";
  return {threads, shared};
}

INSTANTIATE_TEST_SUITE_P(Local, Conformance, ::testing::ValuesIn(local_kinds()), name_of);
INSTANTIATE_TEST_SUITE_P(Local, OneSided, ::testing::ValuesIn(local_kinds()), name_of);
INSTANTIATE_TEST_SUITE_P(Local, Messages, ::testing::ValuesIn(local_kinds()), name_of);

}  // namespace conformance
