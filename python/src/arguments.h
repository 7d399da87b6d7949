// SPDX-License-Identifier: Apache-2.0
//
// Arguments as Python gave them. What does not fit raises an error with the argument's name, what
// was given and what is accepted: the binding's own error names none of them.
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

// Whether it is one whole number: an int, or what has __index__ and no elements, as numpy's
// integers.
bool is_whole(nb::handle given);
// The int that it is, or that its __index__ gives; nothing, and no error, where it has neither.
nb::object as_int(nb::handle given);

uint64_t whole_number(nb::handle given, Argument argument);
uint32_t small_number(nb::handle given, Argument argument);
bool flag(nb::handle given, Argument argument);
std::string string(nb::handle given, Argument argument);

}  // namespace onehop::python
