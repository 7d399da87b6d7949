// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <numeric>

namespace oh {
namespace {

Status wrong(const ConfigEntry& entry, std::string_view value) {
  return error(OH_ERR_CONFIG, "%s=%.*s is not allowed: expected %s (default %s)", entry.name,
               entry.hidden ? 8 : static_cast<int>(value.size()),
               entry.hidden ? "(hidden)" : value.data(), entry.allowed,
               entry.standard[0] ? entry.standard : "empty");
}

// A choice as the table spells it: lower case; 1 means on, 0 means off.
std::string choice_of(std::string_view value) {
  if (value == "1") return "on";
  if (value == "0") return "off";
  std::string text(value);
  for (char& letter : text) {
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter - 'A' + 'a');
  }
  return text;
}

bool is_choice(std::string_view choices, std::string_view value) {
  while (!choices.empty()) {
    size_t comma = choices.find(", ");
    if (choices.substr(0, comma) == value) return true;
    if (comma == std::string_view::npos) break;
    choices.remove_prefix(comma + 2);
  }
  return false;
}

Status apply(const ConfigEntry& entry, std::string_view value, Config* config) {
  if (entry.integer) {
    Result<int64_t> number =
        parse_integer(value, static_cast<int64_t>(entry.low), static_cast<int64_t>(entry.high));
    if (!number.ok()) return wrong(entry, value);
    config->*entry.integer = *number;
    return {};
  }
  if (entry.seconds) {
    double number = 0;
    auto [end, failure] = std::from_chars(value.data(), value.data() + value.size(), number);
    bool whole = failure == std::errc() && end == value.data() + value.size();
    if (!whole || !(number >= entry.low && number <= entry.high)) return wrong(entry, value);
    config->*entry.seconds = number;
    return {};
  }
  config->*entry.text = std::string(value);
  if (std::string_view(entry.type) != "choice" || is_choice(entry.allowed, value)) return {};
  config->*entry.text = choice_of(value);
  return is_choice(entry.allowed, config->*entry.text) ? Status() : wrong(entry, value);
}

// Each % is followed by h, p or another %.
bool is_pattern(std::string_view path) {
  for (size_t at = path.find('%'); at != std::string_view::npos; at = path.find('%', at + 2)) {
    if (at + 1 == path.size() || !std::strchr("hp%", path[at + 1])) return false;
  }
  return true;
}

// Checks that the table cannot express.
Status check_whole(Config* config) {
  for (const ConfigEntry& entry : config_table()) {
    if (entry.text == &Config::port_range &&
        !parse_port_range(config->port_range, &config->port_first, &config->port_last).ok()) {
      return wrong(entry, config->port_range);
    }
    if (entry.text == &Config::trace && !is_pattern(config->trace)) {
      return wrong(entry, config->trace);
    }
    if (entry.text == &Config::secret && !config->secret.empty() && config->secret.size() < 16) {
      return wrong(entry, config->secret);
    }
    if (entry.text == &Config::socket_dir && config->socket_dir.size() > 64) {
      return wrong(entry, config->socket_dir);
    }
  }
  return {};
}

// Check early: the folder is used only after a timeout, or by a process in another network
// namespace.
Status check_folder(const ConfigEntry& entry, const std::string& folder) {
  struct stat found{};
  const bool exists = stat(folder.c_str(), &found) == 0;
  int failure = 0;
  if (exists && !S_ISDIR(found.st_mode)) {
    failure = ENOTDIR;
  } else if (!exists || access(folder.c_str(), W_OK | X_OK) < 0) {
    failure = errno;
  }
  if (failure == 0) return {};
  return Status::from_errno(
      OH_ERR_CONFIG, failure,
      strf("%s=%s is not allowed: expected %s; make that folder, or name another (default %s)",
           entry.name, folder.c_str(), entry.allowed,
           entry.standard[0] ? entry.standard : "empty"));
}

// Number of insertions, deletions and replacements that turn one text into the other.
size_t edit_distance(std::string_view one, std::string_view other) {
  std::vector<size_t> row(other.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < one.size(); ++i) {
    size_t diagonal = std::exchange(row[0], i + 1);
    for (size_t j = 0; j < other.size(); ++j) {
      size_t replaced = diagonal + (one[i] != other[j]);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

}  // namespace

Result<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high) {
  int64_t value = 0;
  auto [end, failure] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failure != std::errc() || end != text.data() + text.size() || value < low || value > high) {
    return error(OH_ERR_INVALID, "'%.*s' is not a decimal number from %lld to %lld",
                 static_cast<int>(text.size()), text.data(), static_cast<long long>(low),
                 static_cast<long long>(high));
  }
  return value;
}

Status parse_port_range(std::string_view text, uint16_t* first, uint16_t* last) {
  size_t dash = text.find('-');
  Result<int64_t> low = parse_integer(text.substr(0, dash), 1, 65535);
  Result<int64_t> high =
      dash == std::string_view::npos ? low : parse_integer(text.substr(dash + 1), 1, 65535);
  if (!low.ok() || !high.ok() || *low > *high) {
    return error(OH_ERR_INVALID, "port range '%.*s' is wrong: expected FIRST-LAST within 1-65535",
                 static_cast<int>(text.size()), text.data());
  }
  *first = static_cast<uint16_t>(*low);
  *last = static_cast<uint16_t>(*high);
  return {};
}

Result<Config> Config::from(const char* (*lookup)(const char* name)) {
  // An empty variable counts as not set.
  auto given = [lookup](const char* name) {
    const char* value = lookup(name);
    return value && *value ? value : nullptr;
  };
  Config config;
  for (const ConfigEntry& entry : config_table()) {
    const char* value = given(entry.name);
    OH_RETURN_IF_ERROR(apply(entry, value ? value : entry.standard, &config));
  }
  OH_RETURN_IF_ERROR(check_whole(&config));
  config.ucx_eager_max = given("ONEHOP_EAGER_MAX") ? config.eager_max : kUcxEagerMax;
  config.ucx_eager_credit = given("ONEHOP_EAGER_CREDIT") ? config.eager_credit : kUcxEagerCredit;
  return config;
}

Result<Config> Config::from_environment() {
  OH_ASSIGN_OR_RETURN(Config config,
                      from([](const char* name) -> const char* { return std::getenv(name); }));
  for (const ConfigEntry& entry : config_table()) {
    if (std::string_view(entry.type) != "folder") continue;
    const std::string& folder = config.*entry.text;
    if (folder != entry.standard) OH_RETURN_IF_ERROR(check_folder(entry, folder));
  }
  config.unknown = unknown_variables(environ);
  return config;
}

std::vector<std::string> unknown_variables(const char* const* environment) {
  std::vector<std::string> names;
  for (; *environment; ++environment) {
    std::string_view line = *environment;
    std::string_view name = line.substr(0, line.find('='));
    bool known = std::ranges::any_of(config_table(),
                                     [&](const ConfigEntry& entry) { return name == entry.name; });
    if (name.starts_with("ONEHOP_") && !known) names.emplace_back(name);
  }
  return names;
}

const char* nearest_variable(std::string_view name) {
  constexpr size_t kFar = 4;
  const char* nearest = nullptr;
  size_t least = kFar;
  for (const ConfigEntry& entry : config_table()) {
    size_t distance = edit_distance(name, entry.name);
    if (distance < least) {
      least = distance;
      nearest = entry.name;
    }
  }
  return nearest;
}

}  // namespace oh
