// SPDX-License-Identifier: Apache-2.0
#include "arguments.h"

#include <nanobind/stl/string.h>

#include <limits>

#include "errors.h"

namespace onehop::python {

void refuse_type(nb::handle given, Argument argument) {
  throw TypeMismatch(std::string(argument.name) + " is of type " + name_of_type(given) + ": give " +
                     argument.accepted);
}

void refuse_value(nb::handle given, Argument argument) {
  raise_invalid(std::string(argument.name) + " is " + shown(given) + ": give " + argument.accepted);
}

bool is_whole(nb::handle given) {
  return PyLong_Check(given.ptr()) ||
         (PyIndex_Check(given.ptr()) && !PySequence_Check(given.ptr()));
}

nb::object as_int(nb::handle given) {
  if (PyLong_Check(given.ptr())) return nb::borrow(given);
  if (!is_whole(given)) return {};
  nb::object number = nb::steal(PyNumber_Index(given.ptr()));
  if (!number.is_valid()) PyErr_Clear();
  return number;
}

uint64_t whole_number(nb::handle given, Argument argument) {
  nb::object number = as_int(given);
  if (!number.is_valid()) refuse_type(given, argument);
  uint64_t value = PyLong_AsUnsignedLongLong(number.ptr());
  if (value == std::numeric_limits<uint64_t>::max() && PyErr_Occurred()) {
    PyErr_Clear();
    refuse_value(number, argument);
  }
  return value;
}

uint32_t small_number(nb::handle given, Argument argument) {
  uint64_t value = whole_number(given, argument);
  if (value > std::numeric_limits<uint32_t>::max()) refuse_value(given, argument);
  return static_cast<uint32_t>(value);
}

bool flag(nb::handle given, Argument argument) {
  if (!PyBool_Check(given.ptr())) refuse_type(given, argument);
  return given.ptr() == Py_True;
}

std::string string(nb::handle given, Argument argument) {
  if (!PyUnicode_Check(given.ptr())) refuse_type(given, argument);
  Py_ssize_t size = 0;
  const char* text = PyUnicode_AsUTF8AndSize(given.ptr(), &size);
  if (!text) {  // a lone surrogate
    PyErr_Clear();
    refuse_value(given, argument);
  }
  return {text, static_cast<size_t>(size)};
}

}  // namespace onehop::python
