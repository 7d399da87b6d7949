// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <cstdarg>

#include "base/text.h"

namespace oh {
namespace {
constexpr const char* kNames[] = {"off", "error", "warn", "info", "debug"};
std::atomic<int> g_level{static_cast<int>(LogLevel::kWarn)};
std::atomic<int> g_fd{STDERR_FILENO};

// Warns once per process.
void warn_of_unknown(const std::vector<std::string>& names) {
  static std::atomic<bool> warned{false};
  if (names.empty() || warned.exchange(true, std::memory_order_relaxed)) return;
  for (const std::string& name : names) {
    const char* nearest = nearest_variable(name);
    std::string advice =
        nearest ? strf("did you mean %s?", nearest) : "`onehop info --config` lists all variables";
    OH_LOG(kWarn, "%s is set, but there is no such variable, and it has no effect: %s",
           name.c_str(), advice.c_str());
  }
}
}  // namespace

void log_configure(const Config& config) {
  for (int level = 0; level < 5; ++level) {
    if (config.log == kNames[level]) g_level.store(level, std::memory_order_relaxed);
  }
  // Opened once for the life of the process; later endpoints append to the same file.
  if (!config.log_file.empty() && g_fd.load(std::memory_order_relaxed) == STDERR_FILENO) {
    int fd = open(config.log_file.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0) {
      g_fd.store(fd, std::memory_order_relaxed);
    } else {
      OH_LOG_ONCE(kError,
                  "ONEHOP_LOG_FILE=%s cannot be opened (%s): the log stays on standard error",
                  config.log_file.c_str(), errno_name(errno).c_str());
    }
  }
  warn_of_unknown(config.unknown);
}

bool log_enabled(LogLevel level) {
  return static_cast<int>(level) <= g_level.load(std::memory_order_relaxed);
}

void log_line(LogLevel level, const char* format, ...) {
  timespec time;
  clock_gettime(CLOCK_REALTIME, &time);
  va_list arguments;
  va_start(arguments, format);
  std::string line = strf("onehop %lld.%06ld %d %s: ", static_cast<long long>(time.tv_sec),
                          time.tv_nsec / 1000, getpid(), kNames[static_cast<int>(level)]) +
                     vstrf(format, arguments) + "\n";
  va_end(arguments);
  [[maybe_unused]] ssize_t written =
      write(g_fd.load(std::memory_order_relaxed), line.data(), line.size());
}

}  // namespace oh
