// SPDX-License-Identifier: Apache-2.0
//
// Lists of offsets and lengths, as Python gave them.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/stl/string.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "context.h"
#include "errors.h"

namespace onehop::python {

// Offsets or lengths: an array of 64-bit integers as it is, anything else one by one.
class Numbers {
 public:
  Numbers(nb::handle object, const char* name) {
    if (PyObject_CheckBuffer(object.ptr()) && view(object)) return;
    nb::object iterator = nb::steal(PyObject_GetIter(object.ptr()));
    if (!iterator.is_valid()) {
      PyErr_Clear();
      throw TypeMismatch(std::string(name) + " is a " + name_of_type(object) +
                         ": give an array of int64 or uint64, or a sequence of integers");
    }
    for (nb::handle item : object) copy_.push_back(number(item, name));
    data_ = copy_.data();
    size_ = copy_.size();
  }
  // One number, `count` times.
  Numbers(uint64_t value, size_t count) : copy_(count, value), data_(copy_.data()), size_(count) {}
  ~Numbers() {
    if (view_.obj) PyBuffer_Release(&view_);
  }
  Numbers(const Numbers&) = delete;
  const uint64_t* data() const { return data_; }
  size_t size() const { return size_; }

  static uint64_t number(nb::handle item, const char* name) {
    nb::object index = nb::steal(PyNumber_Index(item.ptr()));
    uint64_t value = index.is_valid() ? PyLong_AsUnsignedLongLong(index.ptr()) : 0;
    if (!PyErr_Occurred()) return value;
    PyErr_Clear();
    raise_invalid(std::string(name) + " has " + nb::cast<std::string>(nb::repr(item)) +
                  ": offsets and lengths are whole numbers of bytes from 0");
  }

 private:
  // Whether the object is an array of 64-bit integers. Negative ones are out of any region's range.
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
    bool fits = view_.itemsize == 8 && view_.ndim == 1 && format.size() == 1 &&
                std::string_view("qQlL").find(format[0]) != std::string_view::npos &&
                reinterpret_cast<uintptr_t>(view_.buf) % alignof(uint64_t) == 0;
    if (fits) {
      data_ = static_cast<const uint64_t*>(view_.buf);
      size_ = static_cast<size_t>(view_.len) / sizeof(uint64_t);
    } else {
      PyBuffer_Release(&view_);
      view_ = {};
    }
    return fits;
  }

  Py_buffer view_{};
  std::vector<uint64_t> copy_;
  const uint64_t* data_ = nullptr;
  size_t size_ = 0;
};

struct Range {
  uint64_t start;
  uint64_t step;
  size_t count;
};
// A range that counts upwards.
inline std::optional<Range> as_range(nb::handle object) {
  if (!PyRange_Check(object.ptr())) return std::nullopt;
  auto start = nb::cast<int64_t>(object.attr("start"));
  auto step = nb::cast<int64_t>(object.attr("step"));
  if (start < 0 || step < 0) return std::nullopt;
  return Range{static_cast<uint64_t>(start), static_cast<uint64_t>(step), nb::len(object)};
}

}  // namespace onehop::python
