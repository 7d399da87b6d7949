// SPDX-License-Identifier: Apache-2.0
//
// Runs the unit tests, each under a watchdog.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstring>

#include "unit/faulty_os.h"

namespace {

constexpr unsigned kWatchdogSeconds = 120;
char g_running[256];

void bark(int) {
  constexpr char kText[] = "\nthe watchdog ends a test that hangs: ";
  [[maybe_unused]] ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  written = write(STDERR_FILENO, g_running, strlen(g_running));
  written = write(STDERR_FILENO, "\n", 1);
  abort();
}

class Watchdog : public ::testing::EmptyTestEventListener {
  void OnTestStart(const ::testing::TestInfo& test) override {
    snprintf(g_running, sizeof(g_running), "%s.%s", test.test_suite_name(), test.name());
    alarm(kWatchdogSeconds);
  }
  void OnTestEnd(const ::testing::TestInfo&) override { alarm(0); }
};

}  // namespace

int main(int count, char** arguments) {
  ::testing::InitGoogleTest(&count, arguments);
  unit::FaultySystem::instance();  // before any thread that may call it
  signal(SIGALRM, bark);
  signal(SIGPIPE, SIG_IGN);
  ::testing::UnitTest::GetInstance()->listeners().Append(new Watchdog);
  return RUN_ALL_TESTS();
}
