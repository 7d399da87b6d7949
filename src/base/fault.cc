// SPDX-License-Identifier: Apache-2.0
#include "base/fault.h"

#if defined(OH_FAULTS)
namespace oh {
std::atomic<FaultHook> g_fault_hook{nullptr};
}  // namespace oh
#endif
