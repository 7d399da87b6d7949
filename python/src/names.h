// SPDX-License-Identifier: Apache-2.0
//
// Attribute names as interned strings, and optional attributes.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

namespace onehop::python {

// A name that is interned once and never freed; for `static const` variables.
class Name {
 public:
  explicit Name(const char* text) : text_(PyUnicode_InternFromString(text)) {}
  PyObject* ptr() const { return text_; }

 private:
  PyObject* text_;
};

// Returns the attribute; null if it is missing. Raises any error other than AttributeError.
inline nanobind::object find_attribute(nanobind::handle object, const Name& name) {
  nanobind::object found = nanobind::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (found.is_valid()) return found;
  if (!PyErr_ExceptionMatches(PyExc_AttributeError)) throw nanobind::python_error();
  PyErr_Clear();
  return found;
}
// Returns the attribute; null on any error.
inline nanobind::object try_attribute(nanobind::handle object, const Name& name) {
  nanobind::object found = nanobind::steal(PyObject_GetAttr(object.ptr(), name.ptr()));
  if (!found.is_valid()) PyErr_Clear();
  return found;
}

}  // namespace onehop::python
