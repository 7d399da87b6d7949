// SPDX-License-Identifier: Apache-2.0
//
// Logging: one line per message, written with one system call.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <string>

#include "base/config.h"

namespace oh {

enum class LogLevel : int { kOff = 0, kError, kWarn, kInfo, kDebug };

// Sets the level and file of the process. The configuration of each new endpoint applies.
void log_configure(const Config& config);
bool log_enabled(LogLevel level);
[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...);

}  // namespace oh

#define OH_LOG(level, ...)                                \
  do {                                                    \
    if (::oh::log_enabled(::oh::LogLevel::level)) {       \
      ::oh::log_line(::oh::LogLevel::level, __VA_ARGS__); \
    }                                                     \
  } while (false)

// Logs once per call site and process.
#define OH_LOG_ONCE(level, ...)                                                            \
  do {                                                                                     \
    static std::atomic<bool> oh_logged_{false};                                            \
    if (!oh_logged_.exchange(true, std::memory_order_relaxed)) OH_LOG(level, __VA_ARGS__); \
  } while (false)
