// SPDX-License-Identifier: Apache-2.0
//
// Translation of C++ exceptions into those of onehop.errors.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "onehop/onehop.hpp"

namespace onehop::python {

// An object of an unsupported type; in Python also a TypeError.
class TypeMismatch : public OperationError {
 public:
  explicit TypeMismatch(const std::string& text) : OperationError(OH_ERR_INVALID, text) {}
};

// Throws the error of `status` with a saved text.
[[noreturn]] void throw_status(oh_status status, const std::string& text);
[[noreturn]] void raise_invalid(const std::string& text);
[[noreturn]] void raise_range(const std::string& text);

// Converts a text of the library to str. File names and variables in it may not be valid UTF-8:
// such bytes become \xNN.
nanobind::str to_text(std::string_view text);
// str(object) as UTF-8; lone surrogates become \uNNNN.
std::string shown(nanobind::handle object);

nanobind::object exception_for(const Error& error);

// The name of the object's type, for texts.
std::string name_of_type(nanobind::handle object);
// The text of a Python error, without its traceback.
std::string text_of(const nanobind::python_error& error);
// Clears the pending Python error and returns its text.
std::string take_python_error();

void bind_errors(nanobind::module_& module);

}  // namespace onehop::python
