// SPDX-License-Identifier: Apache-2.0
//
// Exceptions: C++ ones become those of onehop.errors.
#pragma once

#include <nanobind/nanobind.h>

#include <string>
#include <string_view>

#include "onehop/onehop.hpp"

namespace onehop::python {

// An object of a type that cannot be used: a TypeError too.
class TypeMismatch : public OperationError {
 public:
  explicit TypeMismatch(const std::string& text) : OperationError(OH_ERR_INVALID, text) {}
};

// What `status` stands for, with a text that was kept.
[[noreturn]] void throw_status(oh_status status, const std::string& text);
[[noreturn]] void raise_invalid(const std::string& text);
[[noreturn]] void raise_range(const std::string& text);

// Text of the library's as a str. The names of files and variables in it may be no UTF-8: those
// bytes become \xNN.
nanobind::str to_text(std::string_view text);
// str(object) as UTF-8; halves of surrogate pairs, which have none, become \uNNNN.
std::string shown(nanobind::handle object);

nanobind::object exception_for(const Error& error);

// The type's name, for messages.
std::string name_of_type(nanobind::handle object);
// The text of a Python error, without its traceback.
std::string text_of(const nanobind::python_error& error);
// Takes the pending Python error away and returns its text.
std::string take_python_error();

void bind_errors(nanobind::module_& module);

}  // namespace onehop::python
