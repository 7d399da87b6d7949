// SPDX-License-Identifier: Apache-2.0
#include "conformance/sides.h"

namespace conformance {

INSTANTIATE_TEST_SUITE_P(
    Local, Conformance,
    ::testing::Values(
        LinkKind{.name = "threads", .processes = false, .path = OH_PATH_LOCAL},
        LinkKind{.name = "threads_shared_memory", .processes = false, .path = OH_PATH_LOCAL}.with(
            MemoryKind::kShared)),
    [](const auto& test) { return test.param.name; });

}  // namespace conformance
