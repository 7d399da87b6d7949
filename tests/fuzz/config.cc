// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <cmath>
#include <string>

#include "fuzz/fuzz.h"
#include "platform/os/net.h"

namespace fuzz {

using namespace oh;

std::vector<Bytes> seeds() {
  std::vector<Bytes> all;
  uint8_t number = 0;
  for (const ConfigEntry& entry : config_table()) {
    Bytes bytes = {number++};
    ByteView standard = as_bytes(entry.standard);
    bytes.insert(bytes.end(), standard.begin(), standard.end());
    all.push_back(bytes);
  }
  return all;
}

namespace {
const char* g_name;
std::string g_value;
}  // namespace

void check(ByteView input) {
  Input in(input);
  const ConfigEntry& entry = config_table()[in.byte() % config_table().size()];
  ByteView rest = in.rest();
  g_name = entry.name;
  g_value.assign(rest.begin(), rest.end());
  Result<Config> config = Config::from([](const char* name) -> const char* {
    return std::string_view(name) == g_name ? g_value.c_str() : nullptr;
  });
  if (config.ok()) {
    require(config->port_first >= 1 && config->port_first <= config->port_last, "ports ascend");
    require(config->timeout_ns() > 0 && config->hello_timeout_ns() > 0, "times are positive");
    if (entry.integer) {
      auto value = static_cast<double>((*config).*entry.integer);
      require(value >= entry.low && value <= entry.high, "a number is within its range");
    }
    if (entry.seconds) require(std::isfinite((*config).*entry.seconds), "seconds are finite");
  } else {
    require(config.status().code() == OH_ERR_CONFIG, "a wrong value is OH_ERR_CONFIG");
    require(config.status().text().find(entry.name) != std::string::npos, "the variable is named");
  }
  uint16_t first = 0;
  uint16_t last = 0;
  if (parse_port_range(g_value, &first, &last).ok()) require(first <= last, "ports ascend");
  Result<SocketAddress> address = SocketAddress::numeric(g_value.c_str(), 1);
  if (address.ok()) require(!address->text().empty(), "an address has a text");
}

}  // namespace fuzz
