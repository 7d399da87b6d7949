// SPDX-License-Identifier: Apache-2.0
#include "control/address.h"

#include <algorithm>

#include "base/text.h"

namespace oh {
namespace {

constexpr uint32_t kMagic = 0x4441484f;  // "OHAD"
constexpr size_t kMaxText = 256;
constexpr uint32_t kMaxHosts = 64;

// FNV-1a: detects damage, not forgery. The key is the protection.
uint64_t check_of(ByteView bytes) {
  uint64_t hash = 0xcbf29ce484222325ULL;
  for (uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3ULL;
  return hash;
}

std::string host_text(SocketAddress address) {
  std::string text = address.text();
  text.resize(text.rfind(':'));
  if (!text.empty() && text.front() == '[') text = text.substr(1, text.size() - 2);
  return text;
}

}  // namespace

Status check_wire_version(uint16_t major, uint16_t minor, const char* whose) {
  if (major == kWireMajor && minor + 1 >= kWireMinor && minor <= kWireMinor + 1) return {};
  return error(
      OH_ERR_VERSION,
      "%s speaks wire version %u.%u, this build %u.%u: use releases that are at most one minor "
      "version apart",
      whose, major, minor, kWireMajor, kWireMinor);
}

Bytes Address::encode() const {
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(kMagic);
  writer.u16(kWireMajor);
  writer.u16(kWireMinor);
  writer.raw(process);
  writer.raw(endpoint);
  writer.raw(key);
  writer.text(label);
  writer.text(unix_name);
  writer.text(unix_path);
  writer.u16(hosts.empty() ? 0 : hosts.front().port());
  // A host may have more addresses than a connect should try.
  auto count = static_cast<uint32_t>(std::min<size_t>(hosts.size(), kMaxHosts));
  writer.u32(count);
  for (uint32_t i = 0; i < count; ++i) writer.text(host_text(hosts[i]));
  writer.u64(check_of(bytes));
  return bytes;
}

Result<Address> Address::decode(ByteView bytes) {
  Reader reader(bytes);
  if (bytes.size() < 8 || reader.u32() != kMagic) {
    return error(OH_ERR_INVALID, "these %zu bytes are no onehop address", bytes.size());
  }
  uint16_t major = reader.u16();
  uint16_t minor = reader.u16();
  OH_RETURN_IF_ERROR(check_wire_version(
      major, minor, "the endpoint of this address, unless its bytes were altered,"));
  uint64_t check = 0;
  if (bytes.size() > 16 && bytes.size() <= kMaxBytes) {
    check = Reader(bytes.last(8)).u64();
  }
  if (check == 0 || check != check_of(bytes.first(bytes.size() - 8))) {
    return error(OH_ERR_INVALID, "the address of %zu bytes is cut off or was altered",
                 bytes.size());
  }
  Address address;
  auto take = [&](auto& out) {
    ByteView raw = reader.raw(out.size());
    std::copy(raw.begin(), raw.end(), out.begin());
  };
  take(address.process);
  take(address.endpoint);
  take(address.key);
  address.label = printable(reader.text(kMaxText), kMaxText);
  address.unix_name = reader.text(kMaxText);
  address.unix_path = reader.text(kMaxText);
  uint16_t port = reader.u16();
  uint32_t count = reader.u32();
  for (uint32_t i = 0; reader.ok() && i < count && i < kMaxHosts; ++i) {
    OH_ASSIGN_OR_RETURN(SocketAddress host, SocketAddress::numeric(reader.text(kMaxText), port));
    address.hosts.push_back(host);
  }
  reader.u64();
  if (!reader.at_end()) {
    return error(OH_ERR_INVALID, "the address of %zu bytes is malformed", bytes.size());
  }
  return address;
}

}  // namespace oh
