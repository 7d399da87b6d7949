// SPDX-License-Identifier: Apache-2.0
//
// All ONEHOP_* variables: name, type, range, default, meaning. Each endpoint reads them from the
// environment when it is created, so that a wrong value is an error of that call and not a silent
// default.
//
// Threading: Config is a value; the table is constant.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace oh {

struct Config {
  // Text fields.
  std::string log;
  std::string log_file;
  std::string flight_dir;
  std::string trace;
  std::string nvtx;
  std::string top;
  std::string secret;
  std::string interface_name;
  std::string port_range;
  std::string cma;
  std::string cuda_ipc;
  std::string batch_kernel;
  std::string worker;
  std::string segment;
  std::string progress_thread;
  std::string socket_dir;
  std::string libcrypto;
  std::string cuda_library;
  std::string nvml_library;
  std::string transport;
  std::string ucx_library;
  std::string ucx_rma;
  std::string numa;
  std::string metrics;
  std::string nixl;
  // Whole numbers.
  int64_t trace_events = 0;
  int64_t max_inline = 0;
  int64_t eager_max = 0;
  int64_t eager_credit = 0;
  int64_t max_pending = 0;
  int64_t spin_us = 0;
  int64_t import_cache = 0;
  int64_t stream_slab = 0;
  static constexpr int64_t kMostStreamSmall = 1 << 20;
  int64_t stream_small = 0;
  int64_t stream_blocks = 0;
  int64_t stream_share = 0;
  int64_t ucx_chunk = 0;
  int64_t pipeline_buffer = 0;
  int64_t pipeline_buffers = 0;
  int64_t pipeline_window = 0;
  int64_t pipeline_depth = 0;
  int64_t staging_buffer = 0;
  int64_t staging_buffers = 0;
  int64_t staging_depth = 0;
  // Seconds.
  double timeout = 0;
  double hello_timeout = 0;
  double peer_timeout = 0;

  // Eager limits of links over UCX. There, a rendezvous takes longer than a copy, and returning
  // credit costs a message.
  static constexpr int64_t kUcxEagerMax = 65536;
  static constexpr int64_t kUcxEagerCredit = 2 << 20;
  int64_t ucx_eager_max = kUcxEagerMax;
  int64_t ucx_eager_credit = kUcxEagerCredit;

  // Derived from port_range.
  uint16_t port_first = 0;
  uint16_t port_last = 0;

  // ONEHOP_* variables that are set but do not exist, probably misspelt. The log names them.
  std::vector<std::string> unknown;

  // Reads the environment. OH_ERR_CONFIG: the text names the variable, its value and what is
  // allowed. A folder other than the default must exist.
  static Result<Config> from_environment();
  // As above, from a function that returns a variable's value or nullptr.
  static Result<Config> from(const char* (*lookup)(const char* name));

  int64_t timeout_ns() const { return static_cast<int64_t>(timeout * 1e9); }
  int64_t hello_timeout_ns() const { return static_cast<int64_t>(hello_timeout * 1e9); }
  int64_t peer_timeout_ns() const { return static_cast<int64_t>(peer_timeout * 1e9); }
};

struct ConfigEntry {
  const char* name;
  const char* type;      // "integer", "seconds", "text", "path", "folder", "range", "choice"
  const char* allowed;   // range or choices, as text
  const char* standard;  // default value, as text
  const char* meaning;
  // Exactly one is set: the member that gets the value.
  std::string Config::* text = nullptr;
  int64_t Config::* integer = nullptr;
  double Config::* seconds = nullptr;
  double low = 0;
  double high = 0;
  bool hidden = false;  // never printed
};

std::span<const ConfigEntry> config_table();

// The names in `environment` (NAME=value, ended by nullptr) that begin with ONEHOP_ and are not in
// the table.
std::vector<std::string> unknown_variables(const char* const* environment);
// The variable that a misspelt name most likely means; nullptr if none is similar.
const char* nearest_variable(std::string_view name);

// Parses "56800-56900" or "56800". Ports are 1-65535 and ascending.
Status parse_port_range(std::string_view text, uint16_t* first, uint16_t* last);
// Parses a decimal integer in [low, high] that fills the text.
Result<int64_t> parse_integer(std::string_view text, int64_t low, int64_t high);

}  // namespace oh
