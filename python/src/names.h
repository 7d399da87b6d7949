// SPDX-License-Identifier: Apache-2.0
//
// Attribute names as interned strings, and attributes that need not be there.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

namespace onehop::python {

// A name that is made once and never freed; for `static const` variables.
class Name {
 public:
  explicit Name(const char* text) : text_(PyUnicode_InternFromString(text)) {}
  PyObject* ptr() const { return text_; }

 private:
  PyObject* text_;
};

// The attribute, or nothing. Raises what the attribute raises, but for AttributeError.
inline nanobind::object find_attribute(nanobind::handle object, const Name& name) {
  nanobind::object found = nanobind::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (found.is_valid()) return found;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nanobind::python_error();
  PyErr_Clear();
  return found;
}
// The same where any error means that it is not there.
inline nanobind::object try_attribute(nanobind::handle object, const Name& name) {
  nanobind::object found = nanobind::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!found.is_valid()) PyErr_Clear();
  return found;
}

}  // namespace onehop::python
