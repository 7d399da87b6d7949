// SPDX-License-Identifier: Apache-2.0
//
// Serialization: little-endian, length-prefixed, bounds-checked. All bytes from a peer or a file
// are parsed by Reader.
//
// Threading: a Writer or Reader belongs to one thread.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace oh {

static_assert(std::endian::native == std::endian::little, "the wire format is little-endian");

using Bytes = std::vector<uint8_t>;
using ByteView = std::span<const uint8_t>;

inline ByteView as_bytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

class Writer {
 public:
  explicit Writer(Bytes& out) : out_(out) {}

  template <typename T>
    requires std::is_integral_v<T>
  void number(T value) {
    raw({reinterpret_cast<const uint8_t*>(&value), sizeof(value)});
  }
  void u8(uint8_t value) { number(value); }
  void u16(uint16_t value) { number(value); }
  void u32(uint32_t value) { number(value); }
  void u64(uint64_t value) { number(value); }
  // Not insert(): gcc 12 reports an overflow in its inlined growth.
  void raw(ByteView bytes) {
    size_t at = out_.size();
    out_.resize(at + bytes.size());
    if (!bytes.empty()) std::memcpy(out_.data() + at, bytes.data(), bytes.size());
  }
  // A 32-bit length, then the bytes.
  void bytes(ByteView view) {
    u32(static_cast<uint32_t>(view.size()));
    raw(view);
  }
  void text(std::string_view view) { bytes(as_bytes(view)); }

 private:
  Bytes& out_;
};

// After the first read past the end, ok() is false and every further read returns zeros. So parse
// all fields, then check once.
class Reader {
 public:
  explicit Reader(ByteView view) : view_(view) {}

  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && view_.empty(); }
  size_t remaining() const { return view_.size(); }

  template <typename T>
    requires std::is_integral_v<T>
  T number() {
    T value{};
    ByteView bytes = raw(sizeof(T));
    if (bytes.size() == sizeof(T)) std::memcpy(&value, bytes.data(), sizeof(T));
    return value;
  }
  uint8_t u8() { return number<uint8_t>(); }
  uint16_t u16() { return number<uint16_t>(); }
  uint32_t u32() { return number<uint32_t>(); }
  uint64_t u64() { return number<uint64_t>(); }

  // Returns `size` bytes, or an empty view if fewer are left.
  ByteView raw(size_t size) {
    if (!ok_ || size > view_.size()) {
      ok_ = false;
      return {};
    }
    ByteView head = view_.first(size);
    view_ = view_.subspan(size);
    return head;
  }
  // A 32-bit length of at most `most`, then as many bytes.
  ByteView bytes(size_t most) {
    uint32_t size = u32();
    if (size > most) ok_ = false;
    return raw(size);
  }
  std::string text(size_t most) {
    ByteView view = bytes(most);
    return std::string(reinterpret_cast<const char*>(view.data()), view.size());
  }
  template <size_t N>
  void array(uint8_t (&out)[N]) {
    ByteView view = raw(N);
    if (view.size() == N) std::memcpy(out, view.data(), N);
  }

 private:
  ByteView view_;
  bool ok_ = true;
};

}  // namespace oh
