// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <cstdint>
#include <cstring>

// Null if glibc is older than 2.32 at run time: wheels are compiled for 2.28.
// NOLINTBEGIN(readability-redundant-declaration): newer headers also declare them.
extern "C" {
[[gnu::weak]] const char* strerrorname_np(int) noexcept;
[[gnu::weak]] const char* strerrordesc_np(int) noexcept;
}
// NOLINTEND(readability-redundant-declaration)

namespace oh {
namespace {

bool continues(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

// Length in bytes of the printable character at the start of the text, or 0 if there is none.
size_t first_character(std::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return lead >= 0x20 && lead != 0x7F ? 1 : 0;
  size_t size = 0;
  if ((lead & 0xE0) == 0xC0) size = 2;
  if ((lead & 0xF0) == 0xE0) size = 3;
  if ((lead & 0xF8) == 0xF0) size = 4;
  if (size == 0 || text.size() < size) return 0;
  uint32_t code = lead & (0x7FU >> size);
  for (size_t i = 1; i < size; ++i) {
    if (!continues(text[i])) return 0;
    code = code << 6 | (static_cast<uint8_t>(text[i]) & 0x3FU);
  }
  // Reject control characters of Latin-1, overlong encodings, surrogates and invalid code points.
  constexpr uint32_t kSmallest[] = {0, 0, 0xA0, 0x800, 0x10000};
  bool surrogate = code >= 0xD800 && code < 0xE000;
  return code >= kSmallest[size] && !surrogate && code < 0x110000 ? size : 0;
}

}  // namespace

std::string printable(std::string_view text, size_t most) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  while (!text.empty()) {
    const size_t size = first_character(text);
    const auto byte = static_cast<uint8_t>(text[0]);
    const char escape[] = {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    std::string_view shown = size > 0 ? text.substr(0, size) : std::string_view(escape, 4);
    if (out.size() + shown.size() > most) break;
    out += shown;
    text.remove_prefix(size > 0 ? size : 1);
  }
  return out;
}

std::string errno_name(int error_number) {
  const char* name = strerrorname_np ? strerrorname_np(error_number) : nullptr;
  return name ? name : "errno " + std::to_string(error_number);
}

std::string errno_text(int error_number) {
  const char* text = strerrordesc_np ? strerrordesc_np(error_number) : nullptr;
  char buffer[128];
  return text ? text : strerror_r(error_number, buffer, sizeof(buffer));
}

std::string_view cut_text(std::string_view text, size_t most) {
  if (text.size() <= most) return text;
  while (most > 0 && continues(text[most])) --most;
  return text.substr(0, most);
}

std::string json_text(std::string_view text) {
  std::string out = "\"";
  // printable() leaves no other character that needs an escape.
  for (char c : printable(text, SIZE_MAX)) {
    if (c == '"' || c == '\\') out += '\\';
    out += c;
  }
  return out + "\"";
}

}  // namespace oh
