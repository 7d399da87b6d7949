// SPDX-License-Identifier: Apache-2.0
//
// Text of another process and numbers, made fit for logs, terminals and error messages.
//
// Threading: functions of their arguments, and of the locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace oh {

// The text with each byte that is not part of a printable UTF-8 character written as \xNN: control
// characters, line breaks among them, would forge log lines or steer a terminal, and bytes that are
// not UTF-8 cannot become strings of other languages. It ends where more than `most` bytes would
// be needed.
std::string printable(std::string_view text, size_t most);

// The text as a JSON string, with its quotes.
std::string json_text(std::string_view text);

// The first bytes of the text, at most `most`; a UTF-8 character is not divided.
std::string_view cut_text(std::string_view text, size_t most);

// Name and text of an error number of the operating system: "ECONNREFUSED", "Connection refused".
// Where glibc has no names (before 2.32), or none for this number, the name is "errno 111", and the
// text that of strerror, in the locale's language.
std::string errno_name(int error_number);
std::string errno_text(int error_number);

// A number for %llu or %llx.
inline unsigned long long ull(uint64_t value) { return value; }

}  // namespace oh
