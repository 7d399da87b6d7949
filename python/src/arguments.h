// SPDX-License-Identifier: Apache-2.0
//
// Validation of Python arguments. A mismatch raises an error with the argument's name, the given
// value and the accepted values; nanobind's own error names none of them.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <string>

namespace onehop::python {

namespace nb = nanobind;

struct Argument {
  const char* name;
  const char* accepted;  // as in "give a lane, 0 to 15"
};

inline constexpr Argument kLane{"lane", "a lane, 0 to 15"};
inline constexpr Argument kSlot{"slot", "a slot, 0 to 63"};
inline constexpr Argument kCount{"n", "a count, 0 to 2**64 - 1"};
inline constexpr Argument kRank{"rank", "a rank, 0 to size - 1"};
inline constexpr Argument kSize{"size", "how many ranks there are, 1 to 2**31 - 1"};

[[noreturn]] void refuse_type(nb::handle given, Argument argument);
[[noreturn]] void refuse_value(nb::handle given, Argument argument);

// Whether the object is a single integer: an int, or an object with __index__ but no elements, such
// as a numpy integer.
bool is_whole(nb::handle given);
// The object as an int, through __index__ if needed; null, without a Python error, if it is none.
nb::object as_int(nb::handle given);

uint64_t whole_number(nb::handle given, Argument argument);
uint32_t small_number(nb::handle given, Argument argument);
bool flag(nb::handle given, Argument argument);
std::string string(nb::handle given, Argument argument);

}  // namespace onehop::python
