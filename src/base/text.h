// SPDX-License-Identifier: Apache-2.0
//
// Sanitizes text of other processes for logs, terminals and error messages, and formats numbers.
//
// Threading: the functions depend only on their arguments and the locale.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace oh {

// Replaces each byte that is not part of a printable UTF-8 character by \xNN. Control characters,
// such as line breaks, could forge log lines or control a terminal, and invalid UTF-8 cannot become
// a string in other languages. Cuts the result before it exceeds `most` bytes.
std::string printable(std::string_view text, size_t most);

// The text as a JSON string, with its quotes.
std::string json_text(std::string_view text);

// At most the first `most` bytes of the text, cut between UTF-8 characters.
std::string_view cut_text(std::string_view text, size_t most);

// Name and text of an errno: "ECONNREFUSED", "Connection refused". If glibc has no name (before
// 2.32, or for this number), the name is "errno 111" and the text is strerror's, in the language of
// the locale.
std::string errno_name(int error_number);
std::string errno_text(int error_number);

// Casts a number for %llu or %llx.
inline unsigned long long ull(uint64_t value) { return value; }

}  // namespace oh
