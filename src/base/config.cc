// SPDX-License-Identifier: Apache-2.0
#include "base/config.h"

#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>

namespace oh {
namespace {

constexpr int64_t kMiB = 1 << 20;

constexpr ConfigEntry kTable[] = {
    {.name = "ONEHOP_LOG",
     .type = "choice",
     .allowed = "off, error, warn, info, debug",
     .standard = "warn",
     .meaning = "what is written to the log; debug explains each decision",
     .text = &Config::log},
    {.name = "ONEHOP_LOG_FILE",
     .type = "path",
     .allowed = "a file that can be appended to",
     .standard = "",
     .meaning = "where the log goes; empty: standard error",
     .text = &Config::log_file},
    {.name = "ONEHOP_FLIGHT_DIR",
     .type = "path",
     .allowed = "an existing folder",
     .standard = "",
     .meaning = "where a timeout leaves the link's last 1,024 operations, one file a link; empty: "
                "nowhere",
     .text = &Config::flight_dir},
    {.name = "ONEHOP_SECRET",
     .type = "text",
     .allowed = "at least 16 characters",
     .standard = "",
     .meaning = "shared secret of a tcp:// rendezvous; needed unless its address is loopback",
     .text = &Config::secret,
     .hidden = true},
    {.name = "ONEHOP_INTERFACE",
     .type = "text",
     .allowed = "any, an IPv4 or IPv6 address, or the name of a network interface",
     .standard = "any",
     .meaning = "where the process listens for links from other hosts",
     .text = &Config::interface_name},
    {.name = "ONEHOP_PORT_RANGE",
     .type = "range",
     .allowed = "FIRST-LAST or one port, 1-65535",
     .standard = "56800-56900",
     .meaning = "TCP ports to listen on; one port is used per process",
     .text = &Config::port_range},
    {.name = "ONEHOP_SOCKET_DIR",
     .type = "path",
     .allowed = "an existing folder, at most 64 characters",
     .standard = "/tmp",
     .meaning = "folder of the Unix socket that containers with separate network namespaces share",
     .text = &Config::socket_dir},
    {.name = "ONEHOP_TIMEOUT",
     .type = "seconds",
     .allowed = "0.001 to 1e9",
     .standard = "300",
     .meaning = "default deadline of connects and waits",
     .seconds = &Config::timeout,
     .low = 0.001,
     .high = 1e9},
    {.name = "ONEHOP_HELLO_TIMEOUT",
     .type = "seconds",
     .allowed = "0.01 to 3600",
     .standard = "5",
     .meaning = "how long a stranger may take to authenticate before he is dropped",
     .seconds = &Config::hello_timeout,
     .low = 0.01,
     .high = 3600},
    {.name = "ONEHOP_PEER_TIMEOUT",
     .type = "seconds",
     .allowed = "0 to 86400",
     .standard = "30",
     .meaning = "a peer on another host is lost when that answers nothing for so long, or when a "
                "stopped process takes nothing for so long of what fills its socket; 0: never",
     .seconds = &Config::peer_timeout,
     .low = 0,
     .high = 86400},
    {.name = "ONEHOP_MAX_INLINE",
     .type = "integer",
     .allowed = "0 to 65536",
     .standard = "400",
     .meaning = "bytes asked for inside a control message; what the transport grants is reported",
     .integer = &Config::max_inline,
     .low = 0,
     .high = 65536},
    {.name = "ONEHOP_EAGER_MAX",
     .type = "integer",
     .allowed = "0 to 65536",
     .standard = "16384",
     .meaning = "largest message that travels before its receive is known; over UCX 65536, unless "
                "this is set",
     .integer = &Config::eager_max,
     .low = 0,
     .high = 65536},
    {.name = "ONEHOP_EAGER_CREDIT",
     .type = "integer",
     .allowed = "0 to 67108864",
     .standard = "262144",
     .meaning = "bytes a peer may send before their receives are posted",
     .integer = &Config::eager_credit,
     .low = 0,
     .high = 64 * kMiB},
    {.name = "ONEHOP_MAX_PENDING",
     .type = "integer",
     .allowed = "1 to 65536",
     .standard = "65536",
     .meaning = "sends to one peer that may wait for their receives before back-pressure",
     .integer = &Config::max_pending,
     .low = 1,
     .high = 65536},
    {.name = "ONEHOP_SPIN_US",
     .type = "integer",
     .allowed = "0 to 1000000",
     .standard = "50",
     .meaning = "microseconds a wait spins before it yields and sleeps",
     .integer = &Config::spin_us,
     .low = 0,
     .high = 1000000},
    {.name = "ONEHOP_CMA",
     .type = "choice",
     .allowed = "auto, off",
     .standard = "auto",
     .meaning = "single copies by process_vm_readv/writev, where a probe proves that they work",
     .text = &Config::cma},
    {.name = "ONEHOP_CUDA_IPC",
     .type = "choice",
     .allowed = "auto, off",
     .standard = "auto",
     .meaning = "device memory mapped between processes; off: it travels through host memory",
     .text = &Config::cuda_ipc},
    {.name = "ONEHOP_BATCH_KERNEL",
     .type = "choice",
     .allowed = "auto, off",
     .standard = "auto",
     .meaning = "batches between devices by a kernel, which waits for processors of the GPU that "
                "others hold; off: by its copy engines, block by block",
     .text = &Config::batch_kernel},
    {.name = "ONEHOP_WORKER",
     .type = "choice",
     .allowed = "off, 0, on, 1",
     .standard = "off",
     .meaning =
         "small copies between devices by a kernel that stays on the GPU while they come "
         "often; others' first launch of a kernel and cudaFree may wait for it, 1 ms at most",
     .text = &Config::worker},
    {.name = "ONEHOP_IMPORT_CACHE",
     .type = "integer",
     .allowed = "1 to 8192",
     .standard = "1024",
     .meaning = "allocations of one peer's device memory that stay mapped",
     .integer = &Config::import_cache,
     .low = 1,
     .high = 8192},
    {.name = "ONEHOP_STREAM_SLAB",
     .type = "integer",
     .allowed = "2097152 to 268435456",
     .standard = "2097152",
     .meaning = "device memory of a peer for the stream domain, in bytes; from 17 MiB on all lanes "
                "are as wide as lane 0; both sides use the smaller one",
     .integer = &Config::stream_slab,
     .low = 2 * kMiB,
     .high = 256 * kMiB},
    {.name = "ONEHOP_STREAM_SMALL",
     .type = "integer",
     .allowed = "0 to 1048576",
     .standard = "262144",
     .meaning = "largest message of the stream domain that lies in the lane's ring, as far as that "
                "has room",
     .integer = &Config::stream_small,
     .low = 0,
     .high = kMiB},
    {.name = "ONEHOP_STREAM_BLOCKS",
     .type = "integer",
     .allowed = "1 to 64",
     .standard = "32",
     .meaning = "thread blocks that a message of the stream domain takes of the GPU at most",
     .integer = &Config::stream_blocks,
     .low = 1,
     .high = 64},
    {.name = "ONEHOP_STREAM_SHARE",
     .type = "integer",
     .allowed = "384 to 1048576",
     .standard = "4096",
     .meaning = "bytes of a message of the stream domain for each of its thread blocks at least",
     .integer = &Config::stream_share,
     .low = 384,
     .high = kMiB},
    {.name = "ONEHOP_TRANSPORT",
     .type = "choice",
     .allowed = "auto, ucx, socket",
     .standard = "auto",
     .meaning =
         "links to other processes; auto: shared memory on one host, between hosts UCX where "
         "both have it, else the control socket; ucx, socket: that one always",
     .text = &Config::transport},
    {.name = "ONEHOP_UCX_LIBRARY",
     .type = "path",
     .allowed = "libucp of UCX 1.13 or newer, or off",
     .standard = "",
     .meaning = "UCX; empty: the libucp that is loaded already, that of the wheel libucx-cu13 "
                "beside this package, libucp.so.0; off: none",
     .text = &Config::ucx_library},
    {.name = "ONEHOP_UCX_CHUNK",
     .type = "integer",
     .allowed = "0 to 1073741824",
     .standard = "0",
     .meaning = "bytes of a large message that UCX is given at once; 0: all of it where there are "
                "cards with RDMA, else 61440, one of its segments over tcp",
     .integer = &Config::ucx_chunk,
     .low = 0,
     .high = 1024 * kMiB},
    {.name = "ONEHOP_STAGING_BUFFER",
     .type = "integer",
     .allowed = "4096 to 67108864",
     .standard = "1048576",
     .meaning = "bytes of a buffer of pinned memory through which device memory goes to and comes "
                "from other hosts; they are made as they are needed",
     .integer = &Config::staging_buffer,
     .low = 4096,
     .high = 64 * kMiB},
    {.name = "ONEHOP_STAGING_BUFFERS",
     .type = "integer",
     .allowed = "1 to 65536",
     .standard = "64",
     .meaning = "such buffers of an endpoint, for each direction; a message without one waits",
     .integer = &Config::staging_buffers,
     .low = 1,
     .high = 65536},
    {.name = "ONEHOP_STAGING_DEPTH",
     .type = "integer",
     .allowed = "1 to 64",
     .standard = "4",
     .meaning = "such buffers that one message has at once",
     .integer = &Config::staging_depth,
     .low = 1,
     .high = 64},
    {.name = "ONEHOP_SEGMENT",
     .type = "choice",
     .allowed = "auto, off",
     .standard = "auto",
     .meaning = "shared memory segment per pair; off: messages travel on the control socket",
     .text = &Config::segment},
    {.name = "ONEHOP_PROGRESS_THREAD",
     .type = "choice",
     .allowed = "auto, on, off",
     .standard = "auto",
     .meaning = "thread that makes progress for an endpoint; auto: started when something needs it",
     .text = &Config::progress_thread},
    {.name = "ONEHOP_LIBCRYPTO",
     .type = "path",
     .allowed = "path or soname of OpenSSL's libcrypto, 1.1 or newer",
     .standard = "",
     .meaning = "library that computes HMAC-SHA256; empty: libcrypto.so.3, .1.1, then .so",
     .text = &Config::libcrypto},
    {.name = "ONEHOP_CUDA_LIBRARY",
     .type = "path",
     .allowed = "a CUDA driver library, or off",
     .standard = "",
     .meaning = "the CUDA driver; empty: libcuda.so.1; off: none, host memory only",
     .text = &Config::cuda_library},
    {.name = "ONEHOP_NVML_LIBRARY",
     .type = "path",
     .allowed = "NVIDIA's management library, or off",
     .standard = "",
     .meaning = "what tells how GPUs are joined; empty: libnvidia-ml.so.1; off: it is not asked",
     .text = &Config::nvml_library},
    {.name = "ONEHOP_NUMA",
     .type = "choice",
     .allowed = "auto, off",
     .standard = "auto",
     .meaning = "threads and memory of endpoints on a GPU near it: on its NUMA node, as far as the "
                "process may use it; off: wherever the system puts them",
     .text = &Config::numa},
};

Status wrong(const ConfigEntry& entry, std::string_view value) {
  return error(OH_ERR_CONFIG, "%s=%.*s is not allowed: expected %s (default %s)", entry.name,
               entry.hidden ? 8 : static_cast<int>(value.size()),
               entry.hidden ? "(hidden)" : value.data(), entry.allowed,
               entry.standard[0] ? entry.standard : "empty");
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
  if (std::string_view(entry.type) == "choice" && !is_choice(entry.allowed, value)) {
    return wrong(entry, value);
  }
  config->*entry.text = std::string(value);
  return {};
}

// What one entry alone cannot say.
Status check_whole(Config* config) {
  for (const ConfigEntry& entry : kTable) {
    if (entry.text == &Config::port_range &&
        !parse_port_range(config->port_range, &config->port_first, &config->port_last).ok()) {
      return wrong(entry, config->port_range);
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

}  // namespace

std::span<const ConfigEntry> config_table() { return kTable; }

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
  Config config;
  for (const ConfigEntry& entry : kTable) {
    const char* value = lookup(entry.name);
    OH_RETURN_IF_ERROR(apply(entry, value ? value : entry.standard, &config));
  }
  OH_RETURN_IF_ERROR(check_whole(&config));
  config.ucx_eager_max = lookup("ONEHOP_EAGER_MAX") ? config.eager_max : kUcxEagerMax;
  return config;
}

Result<Config> Config::from_environment() {
  OH_ASSIGN_OR_RETURN(Config config,
                      from([](const char* name) -> const char* { return std::getenv(name); }));
  config.unknown = unknown_variables(environ);
  return config;
}

std::vector<std::string> unknown_variables(const char* const* environment) {
  std::vector<std::string> names;
  for (; *environment; ++environment) {
    std::string_view line = *environment;
    std::string_view name = line.substr(0, line.find('='));
    bool known = std::any_of(std::begin(kTable), std::end(kTable),
                             [&](const ConfigEntry& entry) { return name == entry.name; });
    if (name.starts_with("ONEHOP_") && !known) names.emplace_back(name);
  }
  return names;
}

}  // namespace oh
