// SPDX-License-Identifier: Apache-2.0
//
// The address of an endpoint: opaque bytes for users; it contains everything needed to connect. Any
// holder of an address may connect, since it contains the endpoint's key.
//
//   | magic 4 | major 2 | minor 2 | process 16 | endpoint 16 | key 32 |
//   | label | unix name | unix path | port 2 | hosts n { text } | check 8 |
//
// Threading: values.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "base/wire.h"
#include "platform/os/crypto.h"
#include "platform/os/net.h"
#include "platform/os/process.h"

namespace oh {

// The wire version. The two sides of a link must have the same major version, and minor versions
// that differ by at most one.
inline constexpr uint16_t kWireMajor = 1;
inline constexpr uint16_t kWireMinor = 0;
// OH_ERR_VERSION: the versions are not compatible. `whose` names the sender in the error text.
Status check_wire_version(uint16_t major, uint16_t minor, const char* whose = "the other side");

struct Address {
  static constexpr size_t kMaxBytes = 4096;

  Id process{};
  Id endpoint{};
  Key key{};
  std::string label;      // "host:pid", for error texts
  std::string unix_name;  // abstract socket; empty: none
  std::string unix_path;  // socket in the file system; empty: none
  std::vector<SocketAddress> hosts;

  Bytes encode() const;
  // OH_ERR_INVALID: not an address, truncated, altered or malformed. OH_ERR_VERSION: of an
  // incompatible version.
  static Result<Address> decode(ByteView bytes);
};

}  // namespace oh
