// SPDX-License-Identifier: Apache-2.0
#include "conformance/sides.h"

namespace conformance {

INSTANTIATE_TEST_SUITE_P(Shm, Conformance, ::testing::ValuesIn(process_kinds()), name_of);

}  // namespace conformance
