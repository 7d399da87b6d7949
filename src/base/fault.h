// SPDX-License-Identifier: Apache-2.0
//
// Fault points: places where a test build stops, kills or delays the process. Release builds have
// none.
#pragma once

#if defined(OH_FAULTS)
#include <atomic>

namespace oh {
using FaultHook = void (*)(const char* point);
// The process's hook; nullptr if none. Tests set it.
extern std::atomic<FaultHook> g_fault_hook;
}  // namespace oh
#define OH_FAULT_POINT(point)                                          \
  do {                                                                 \
    if (::oh::FaultHook hook = ::oh::g_fault_hook.load()) hook(point); \
  } while (false)
#else
#define OH_FAULT_POINT(point) static_cast<void>(0)
#endif
