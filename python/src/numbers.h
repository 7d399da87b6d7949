// SPDX-License-Identifier: Apache-2.0
//
// Lists of offsets and lengths from Python.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/stl/string.h>

#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "arguments.h"
#include "context.h"
#include "errors.h"

namespace onehop::python {

struct Range {
  uint64_t start;
  uint64_t step;
  size_t count;
};
// Converts a non-decreasing range whose values fit.
inline std::optional<Range> as_range(nb::handle object) {
  if (!PyRange_Check(object.ptr())) return std::nullopt;
  auto attribute = [&](const char* name) {
    int overflow = 0;
    int64_t value = PyLong_AsLongLongAndOverflow(nb::object(object.attr(name)).ptr(), &overflow);
    return overflow ? -1 : value;
  };
  int64_t start = attribute("start");
  int64_t step = attribute("step");
  Py_ssize_t count = PyObject_Size(object.ptr());
  PyErr_Clear();  // too many items
  if (start < 0 || step < 0 || count < 0) return std::nullopt;
  return Range{static_cast<uint64_t>(start), static_cast<uint64_t>(step),
               static_cast<size_t>(count)};
}

inline void check_block_count(size_t count, const char* name) {
  if (count <= OH_BATCH_BLOCKS_MAX) return;
  raise_invalid(std::string(name) + " has more than " + std::to_string(OH_BATCH_BLOCKS_MAX) +
                " items: a batch has no more blocks, make several");
}

// Returns the length of a list without iterating over it, which may never end; empty if it has no
// length. Raises if it exceeds the limit of blocks in a batch.
inline std::optional<size_t> length_of(nb::handle object, const char* name) {
  Py_ssize_t size = PyObject_Size(object.ptr());
  if (size < 0) {
    bool too_long = PyErr_ExceptionMatches(PyExc_OverflowError);
    if (!too_long && !PyErr_ExceptionMatches(PyExc_TypeError)) throw nb::python_error();
    PyErr_Clear();
    if (!too_long) return std::nullopt;
  }
  check_block_count(static_cast<size_t>(size), name);
  return static_cast<size_t>(size);
}

// Offsets, lengths or indices. Uses an array of integers of the same width in place; converts
// anything else item by item.
template <typename T>
class Integers {
 public:
  Integers(nb::handle object, const char* name) {
    (void)length_of(object, name);
    if (PyObject_CheckBuffer(object.ptr()) && view(object)) return;
    nb::object iterator = nb::steal(PyObject_GetIter(object.ptr()));
    if (!iterator.is_valid()) {
      PyErr_Clear();
      throw TypeMismatch(std::string(name) + " is a " + name_of_type(object) +
                         ": give an array of int" + kBits + " or uint" + kBits +
                         ", or a sequence of integers");
    }
    while (nb::object item = nb::steal(PyIter_Next(iterator.ptr()))) {
      copy_.push_back(number(item, name));
      check_block_count(copy_.size(), name);
    }
    if (PyErr_Occurred()) throw nb::python_error();
    data_ = copy_.data();
    size_ = copy_.size();
  }
  // Repeats one number `count` times.
  Integers(T value, size_t count) : copy_(count, value), data_(copy_.data()), size_(count) {}
  ~Integers() {
    if (view_.obj) PyBuffer_Release(&view_);
  }
  Integers(const Integers&) = delete;
  const T* data() const { return data_; }
  size_t size() const { return size_; }

  static T number(nb::handle item, const char* name) {
    nb::object index = nb::steal(PyNumber_Index(item.ptr()));
    uint64_t value = index.is_valid() ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
    const bool fits = !PyErr_Occurred() && value <= std::numeric_limits<T>::max();
    PyErr_Clear();
    if (fits) return static_cast<T>(value);
    if (!index.is_valid() && PySequence_Check(item.ptr())) {
      raise_invalid(std::string(name) + " has a " + name_of_type(item) +
                    " as an entry: give one dimension, with one number for each block");
    }
    raise_invalid(std::string(name) + " has " + shown(nb::repr(item)) +
                  (sizeof(T) == 8 ? ": offsets and lengths are whole numbers of bytes from 0"
                                  : ": indices are whole numbers, 0 to 4294967295"));
  }

 private:
  static constexpr const char* kBits = sizeof(T) == 8 ? "64" : "32";

  // Uses the object's memory if it is an array of such integers. Negative ones fail the range check
  // later.
  bool view(nb::handle object) {
    if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_ND) != 0) {
      PyErr_Clear();
      view_ = {};
      return false;
    }
    std::string_view format = view_.format ? view_.format : "B";
    if (format.size() == 2 && (format[0] == '@' || format[0] == '=' || format[0] == '<')) {
      format.remove_prefix(1);
    }
    bool fits = view_.itemsize == sizeof(T) && view_.ndim == 1 && format.size() == 1 &&
                std::string_view("qQlLiI").find(format[0]) != std::string_view::npos &&
                reinterpret_cast<uintptr_t>(view_.buf) % alignof(T) == 0;
    if (fits) {
      data_ = static_cast<const T*>(view_.buf);
      size_ = static_cast<size_t>(view_.len) / sizeof(T);
    } else {
      PyBuffer_Release(&view_);
      view_ = {};
    }
    return fits;
  }

  Py_buffer view_{};
  std::vector<T> copy_;
  const T* data_ = nullptr;
  size_t size_ = 0;
};

using Numbers = Integers<uint64_t>;
using Indices = Integers<uint32_t>;

}  // namespace onehop::python
