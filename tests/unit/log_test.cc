// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <unistd.h>

#include <fstream>
#include <sstream>

#include "unit/support.h"

namespace log_test {
namespace {

using namespace oh;

std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// The log's file is chosen once per process, so each test runs in its own process.
TEST(LogTest, WritesWholeLinesOfItsLevelAndAbove) {
  unit::TempDir dir;
  std::string path = dir.path() + "/log";
  unit::in_child([&] {
    log_configure(unit::config_with({{"ONEHOP_LOG", "info"}, {"ONEHOP_LOG_FILE", path}}));
    OH_LOG(kError, "number %d", 1);
    OH_LOG(kInfo, "number %s", "two");
    OH_LOG(kDebug, "number %d", 3);
    for (int i = 0; i < 5; ++i) OH_LOG_ONCE(kWarn, "once");
  });
  std::string text = contents(path);
  EXPECT_THAT(text, ::testing::ContainsRegex("^onehop [0-9]+\\.[0-9]+ [0-9]+ error: number 1\n"));
  EXPECT_NE(text.find(" info: number two\n"), std::string::npos) << text;
  EXPECT_EQ(text.find("number 3"), std::string::npos) << text;
  EXPECT_EQ(text.find("once"), text.rfind("once")) << text;
}

// A misspelt variable has no effect: it is reported once, with the name that was probably meant.
TEST(LogTest, UnknownVariablesAreNamedOnceWithTheNearest) {
  unit::TempDir dir;
  std::string path = dir.path() + "/log";
  unit::in_child([&] {
    Config config = unit::config_with({{"ONEHOP_LOG_FILE", path}});
    config.unknown = {"ONEHOP_TIMOUT", "ONEHOP_NOTHING_LIKE_IT"};
    for (int i = 0; i < 3; ++i) log_configure(config);
  });
  std::istringstream lines(contents(path));
  std::string first, second, third;
  ASSERT_TRUE(std::getline(lines, first) && std::getline(lines, second));
  EXPECT_FALSE(std::getline(lines, third)) << third;
  EXPECT_THAT(first, ::testing::ContainsRegex("ONEHOP_TIMOUT .*did you mean ONEHOP_TIMEOUT\\?$"));
  EXPECT_THAT(second, ::testing::ContainsRegex("ONEHOP_NOTHING_LIKE_IT .*info --config"));
}

TEST(LogTest, LevelsSwitchOffWhatIsBelow) {
  unit::in_child([] {
    const char* names[] = {"off", "error", "warn", "info", "debug"};
    for (int level = 0; level < 5; ++level) {
      log_configure(unit::config_with({{"ONEHOP_LOG", names[level]}}));
      for (int other = 1; other < 5; ++other) {
        EXPECT_EQ(log_enabled(static_cast<LogLevel>(other)), other <= level);
      }
    }
  });
}

TEST(LogTest, ThreadsDoNotTearEachOthersLines) {
  unit::TempDir dir;
  std::string path = dir.path() + "/log";
  unit::in_child([&] {
    log_configure(unit::config_with({{"ONEHOP_LOG", "info"}, {"ONEHOP_LOG_FILE", path}}));
    unit::Threads threads;
    for (char letter = 'a'; letter < 'e'; ++letter) {
      threads.start([letter] {
        for (int i = 0; i < 200; ++i) OH_LOG(kInfo, "%s", std::string(200, letter).c_str());
      });
    }
  });
  std::istringstream lines(contents(path));
  std::string line;
  size_t count = 0;
  for (; std::getline(lines, line); ++count) {
    ASSERT_GE(line.size(), 200u);
    EXPECT_EQ(line.substr(line.size() - 200), std::string(200, line.back()));
  }
  EXPECT_EQ(count, 800u);
}

// An unwritable file is reported on standard error, which then gets the lines.
TEST(LogTest, AFileThatCannotBeOpenedIsSaid) {
  unit::TempDir dir;
  std::string said = dir.path() + "/stderr";
  unit::in_child([&] {
    ASSERT_NE(freopen(said.c_str(), "w", stderr), nullptr);
    log_configure(unit::config_with({{"ONEHOP_LOG_FILE", dir.path() + "/no/such/folder"}}));
    OH_LOG(kError, "still here");
  });
  std::string text = contents(said);
  EXPECT_NE(text.find("ONEHOP_LOG_FILE=" + dir.path() + "/no/such/folder"), std::string::npos)
      << text;
  EXPECT_NE(text.find("ENOENT"), std::string::npos) << text;
  EXPECT_NE(text.find("still here"), std::string::npos) << text;
}

}  // namespace
}  // namespace log_test
