// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <cstdlib>
#include <map>
#include <set>
#include <string>

#include "unit/support.h"

namespace config_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

std::map<std::string, std::string> g_set;
Result<Config> read(std::map<std::string, std::string> variables) {
  g_set = std::move(variables);
  return Config::from([](const char* name) -> const char* {
    auto found = g_set.find(name);
    return found == g_set.end() ? nullptr : found->second.c_str();
  });
}

TEST(ConfigTest, EveryVariableHasANameATypeAMeaningAndOnePlace) {
  std::set<std::string> names;
  for (const ConfigEntry& entry : config_table()) {
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_TRUE(std::string(entry.name).starts_with("ONEHOP_"));
    EXPECT_STRNE(entry.meaning, "") << entry.name;
    EXPECT_STRNE(entry.allowed, "") << entry.name;
    int places = (entry.text != nullptr) + (entry.integer != nullptr) + (entry.seconds != nullptr);
    EXPECT_EQ(places, 1) << entry.name;
    std::set<std::string> types = {"integer", "seconds", "text",  "path",
                                   "folder",  "range",   "choice"};
    EXPECT_EQ(types.count(entry.type), 1u) << entry.type;
  }
}

TEST(ConfigTest, EveryDefaultIsAllowed) {
  Result<Config> config = read({});
  ASSERT_TRUE(is_ok(config));
  EXPECT_EQ(config->max_inline, 400);
  EXPECT_EQ(config->timeout_ns(), 300 * kSecond);
  EXPECT_EQ(config->hello_timeout_ns(), 5 * kSecond);
  EXPECT_EQ(config->peer_timeout_ns(), 30 * kSecond);
  EXPECT_EQ(config->port_first, 56800);
  EXPECT_EQ(config->port_last, 56900);
  for (const ConfigEntry& entry : config_table()) {
    if (entry.hidden || !entry.standard[0]) continue;
    EXPECT_TRUE(is_ok(read({{entry.name, entry.standard}}))) << entry.name;
    if (!entry.integer && !entry.seconds) continue;
    double standard = std::stod(entry.standard);
    EXPECT_GE(standard, entry.low) << entry.name;
    EXPECT_LE(standard, entry.high) << entry.name;
  }
}

// The error names the variable, the value, the allowed values, and the default.
void refuses(const ConfigEntry& entry, const std::string& value) {
  Result<Config> config = read({{entry.name, value}});
  ASSERT_TRUE(fails_with(config, OH_ERR_CONFIG, entry.name)) << entry.name << "=" << value;
  const std::string& text = config.status().text();
  EXPECT_NE(text.find(entry.allowed), std::string::npos) << text;
  EXPECT_NE(text.find("default"), std::string::npos) << text;
  EXPECT_NE(text.find(entry.hidden ? "=(hidden) " : "=" + value + " "), std::string::npos) << text;
}

TEST(ConfigTest, WholeNumbersAreDecimalAndInRange) {
  for (const ConfigEntry& entry : config_table()) {
    if (!entry.integer) continue;
    auto low = static_cast<int64_t>(entry.low);
    auto high = static_cast<int64_t>(entry.high);
    for (int64_t good : {low, high}) {
      Result<Config> config = read({{entry.name, std::to_string(good)}});
      ASSERT_TRUE(is_ok(config));
      EXPECT_EQ((*config).*entry.integer, good) << entry.name;
    }
    for (const std::string& bad :
         {std::to_string(low - 1), std::to_string(high + 1), std::string(" 1"), std::string("1 "),
          std::string("0x10"), std::string("1e3"), std::string("1k"), std::string("+1"),
          std::string("1.0"), std::string("all"), std::string("99999999999999999999999")}) {
      refuses(entry, bad);
    }
  }
}

TEST(ConfigTest, SecondsAreFiniteAndInRange) {
  for (const ConfigEntry& entry : config_table()) {
    if (!entry.seconds) continue;
    Result<Config> config = read({{entry.name, "0.25"}});
    ASSERT_TRUE(is_ok(config));
    EXPECT_EQ((*config).*entry.seconds, 0.25) << entry.name;
    if (entry.low > 0) refuses(entry, "0");
    for (const char* bad : {"-1", "nan", "inf", "-inf", "1e10", "5s", " 5", "5 ", "0x5"}) {
      refuses(entry, bad);
    }
  }
}

TEST(ConfigTest, ChoicesTakeCapitalsAndSwitchesTakeNumbers) {
  EXPECT_EQ(read({{"ONEHOP_LOG", "DEBUG"}})->log, "debug");
  EXPECT_EQ(read({{"ONEHOP_TOP", "1"}})->top, "on");
  EXPECT_EQ(read({{"ONEHOP_TOP", "0"}})->top, "off");
  EXPECT_TRUE(fails_with(read({{"ONEHOP_LOG", "1"}}), OH_ERR_CONFIG, "ONEHOP_LOG=1"));
}

TEST(ConfigTest, AnEmptyVariableIsNotSet) {
  for (const ConfigEntry& entry : config_table()) {
    EXPECT_TRUE(is_ok(read({{entry.name, ""}}))) << entry.name;
  }
  EXPECT_EQ(read({{"ONEHOP_LOG", ""}})->log, read({})->log);
  EXPECT_EQ(read({{"ONEHOP_EAGER_MAX", ""}})->ucx_eager_max, read({})->ucx_eager_max);
}

TEST(ConfigTest, ChoicesAreTakenWholeOnly) {
  for (const ConfigEntry& entry : config_table()) {
    if (std::string(entry.type) != "choice") continue;
    std::string rest = entry.allowed;
    while (!rest.empty()) {
      size_t comma = rest.find(", ");
      std::string choice = rest.substr(0, comma);
      EXPECT_TRUE(is_ok(read({{entry.name, choice}}))) << choice;
      refuses(entry, choice + "x");
      if (choice.size() > 1) refuses(entry, choice.substr(0, 1));
      rest = comma == std::string::npos ? "" : rest.substr(comma + 2);
    }
    refuses(entry, entry.allowed);
  }
}

const ConfigEntry& entry_of(const std::string& name) {
  for (const ConfigEntry& entry : config_table()) {
    if (name == entry.name) return entry;
  }
  ADD_FAILURE() << name;
  return config_table().front();
}

TEST(ConfigTest, PortRanges) {
  Result<Config> one = read({{"ONEHOP_PORT_RANGE", "8080"}});
  ASSERT_TRUE(is_ok(one));
  EXPECT_EQ(one->port_first, 8080);
  EXPECT_EQ(one->port_last, 8080);
  Result<Config> all = read({{"ONEHOP_PORT_RANGE", "1-65535"}});
  ASSERT_TRUE(is_ok(all));
  EXPECT_EQ(all->port_first, 1);
  EXPECT_EQ(all->port_last, 65535);
  for (const char* bad : {"-", "0", "0-5", "5-", "-5", "7-6", "1-65536", "1-2-3", "1 - 2", "a-b"}) {
    refuses(entry_of("ONEHOP_PORT_RANGE"), bad);
  }
}

TEST(ConfigTest, ASecretIsLongAndNeverShown) {
  refuses(entry_of("ONEHOP_SECRET"), "fifteen letters");
  Result<Config> config = read({{"ONEHOP_SECRET", "fifteen letters"}});
  EXPECT_EQ(config.status().text().find("fifteen"), std::string::npos) << config.status().text();
  EXPECT_TRUE(is_ok(read({{"ONEHOP_SECRET", "sixteen letters!"}})));
}

TEST(ConfigTest, ASocketFolderMustLeaveRoomForAName) {
  EXPECT_TRUE(is_ok(read({{"ONEHOP_SOCKET_DIR", "/" + std::string(63, 'd')}})));
  refuses(entry_of("ONEHOP_SOCKET_DIR"), "/" + std::string(64, 'd'));
}

TEST(ConfigTest, APatternOfAPathHasNoOtherLetters) {
  for (const char* good : {"", "/tmp/trace.json", "%h.%p", "100%%", "%%%p"}) {
    EXPECT_TRUE(is_ok(read({{"ONEHOP_TRACE", good}}))) << good;
  }
  for (const char* bad : {"%", "/tmp/%d", "%h.%", "%%%"}) refuses(entry_of("ONEHOP_TRACE"), bad);
}

TEST(ConfigTest, NumbersAloneAreParsedTheSameWay) {
  EXPECT_EQ(*parse_integer("-5", -5, 5), -5);
  EXPECT_EQ(*parse_integer("007", 0, 9), 7);
  EXPECT_TRUE(fails_with(parse_integer("6", -5, 5), OH_ERR_INVALID, "from -5 to 5"));
  EXPECT_TRUE(fails_with(parse_integer("", 0, 5), OH_ERR_INVALID));
  EXPECT_TRUE(
      fails_with(parse_integer("9223372036854775808", INT64_MIN, INT64_MAX), OH_ERR_INVALID));
}

TEST(ConfigTest, ReadsTheEnvironment) {
  setenv("ONEHOP_EAGER_MAX", "1234", 1);
  Result<Config> config = Config::from_environment();
  unsetenv("ONEHOP_EAGER_MAX");
  ASSERT_TRUE(is_ok(config));
  EXPECT_EQ(config->eager_max, 1234);
}

// A misspelt variable has no effect, so it must be reported.
TEST(ConfigTest, NamesVariablesThatItDoesNotKnow) {
  const char* environment[] = {"PATH=/bin", "ONEHOP_TIMOUT=5",    "ONEHOP_TIMEOUT=5",
                               "ONEHOPS=1", "ONEHOP_TIMEOUT_X=1", "ONEHOP_=",
                               nullptr};
  EXPECT_THAT(unknown_variables(environment),
              ::testing::ElementsAre("ONEHOP_TIMOUT", "ONEHOP_TIMEOUT_X", "ONEHOP_"));
}

TEST(ConfigTest, SuggestsTheVariableThatWasMeant) {
  struct {
    const char* name;
    const char* meant;
  } table[] = {
      {"ONEHOP_TIMOUT", "ONEHOP_TIMEOUT"},
      {"ONEHOP_TIMEOUT_X", "ONEHOP_TIMEOUT"},
      {"ONEHOP_TIMEOUTS", "ONEHOP_TIMEOUT"},
      {"ONEHOP_SOCKETDIR", "ONEHOP_SOCKET_DIR"},
      {"ONEHOP_INTERFACES", "ONEHOP_INTERFACE"},
      {"ONEHOP_TRANSPROT", "ONEHOP_TRANSPORT"},
      {"ONEHOP_LOGS", "ONEHOP_LOG"},
  };
  for (const auto& row : table) EXPECT_STREQ(nearest_variable(row.name), row.meant) << row.name;
  for (const char* name : {"ONEHOP_NOTHING_LIKE_IT", "ONEHOP_COMPLETELY_ELSE"}) {
    EXPECT_EQ(nearest_variable(name), nullptr) << name;
  }
}

// A folder may be needed only after a failure: a missing one must be reported earlier.
TEST(ConfigTest, FoldersThatAreNamedMustExist) {
  unit::TempDir dir;
  std::string file = dir.path() + "/file";
  ASSERT_NE(fclose(fopen(file.c_str(), "w")), EOF);
  for (const char* name : {"ONEHOP_SOCKET_DIR", "ONEHOP_FLIGHT_DIR"}) {
    auto read_with = [&](const std::string& value) {
      setenv(name, value.c_str(), 1);
      Result<Config> config = Config::from_environment();
      unsetenv(name);
      return config;
    };
    EXPECT_TRUE(is_ok(read_with(dir.path()))) << name;
    std::string absent = dir.path() + "/no/such";
    EXPECT_TRUE(fails_with(read_with(absent), OH_ERR_CONFIG, name + ("=" + absent)));
    EXPECT_TRUE(fails_with(read_with(absent), OH_ERR_CONFIG, "make that folder"));
    EXPECT_TRUE(fails_with(read_with(absent), OH_ERR_CONFIG, "ENOENT"));
    EXPECT_TRUE(fails_with(read_with(file), OH_ERR_CONFIG, "ENOTDIR"));
  }
  setenv("ONEHOP_SOCKET_DIR", "", 1);
  EXPECT_TRUE(is_ok(Config::from_environment()));
  unsetenv("ONEHOP_SOCKET_DIR");
}

}  // namespace
}  // namespace config_test
