// SPDX-License-Identifier: Apache-2.0
#include "buffer.h"

#include <algorithm>
#include <string>

#include "errors.h"
#include "names.h"

namespace onehop::python {
namespace {

// Refuses arrays whose bytes are not their values. Skips numpy's own type and Python's built-in
// types, which are not heap types.
void check_values(nb::handle object) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (!PyType_HasFeature(type, Py_TPFLAGS_HEAPTYPE) || !Exporter::of(type).masked) return;
  raise_invalid("the " + name_of_type(object) +
                " has a mask, which its bytes do not show: send array.data and "
                "numpy.ma.getmaskarray(array) apart, receive into array.data");
}

// Whether the elements are or contain references to Python objects, whose bytes are addresses.
bool holds_objects(const char* format) {
  for (const char* at = format; at && *at; ++at) {
    if (*at == ':') {  // the name of a field follows, up to the next colon
      do ++at;
      while (*at && *at != ':');
      if (!*at) return false;
    } else if (*at == 'O') {
      return true;
    }
  }
  return false;
}

}  // namespace

void Buffer::acquire(nb::handle object, Wanted wanted) {
  int flags = PyBUF_FORMAT | PyBUF_ND | (wanted.access == Access::kWrite ? PyBUF_WRITABLE : 0);
  // Request the format, too: the bytes of Python objects must not be transferred.
  if (!PyObject_CheckBuffer(object.ptr()) || PyObject_GetBuffer(object.ptr(), &view_, flags) != 0) {
    return acquire_slowly(object, wanted);
  }
  if (holds_objects(view_.format)) {
    release();
    refuse_objects(object);
  }
  check_values(object);
  data_ = static_cast<uint8_t*>(view_.buf);
  size_ = static_cast<size_t>(view_.len);
}

void Buffer::acquire_slowly(nb::handle object, Wanted wanted) {
  view_ = {};
  if (PyErr_Occurred()) {
    std::string text = take_python_error();
    // cupy arrays implement the buffer protocol only to refuse it.
    if (!shows_cuda_array(object)) return acquire_plainly(object, wanted.access, text);
  }
  exporter_ = Exporter::of(Py_TYPE(object.ptr()));
  if (acquire_exchanged(object, wanted) || acquire_cuda_array(object, wanted) ||
      acquire_dlpack(object, wanted)) {
    return;
  }
  throw TypeMismatch("a " + name_of_type(object) +
                     " is no buffer: give an object with the buffer protocol (bytes, bytearray, "
                     "memoryview, a numpy array), with __dlpack__ (a tensor) or with "
                     "__cuda_array_interface__");
}

// Retries without a format after the buffer protocol failed. Elements without a format code (such
// as datetime64) are still plain bytes; all else fails here, too, with the reason.
void Buffer::acquire_plainly(nb::handle object, Access access, const std::string& text) {
  static const Name kType("dtype");
  static const Name kHasObject("hasobject");
  nb::object type = try_attribute(object, kType);
  nb::object has = type.is_valid() ? try_attribute(type, kHasObject) : nb::object();
  // Includes numpy's variable-length strings, whose bytes are indices into a table of the array.
  if (has.is_valid() && has.ptr() == Py_True) refuse_objects(object);
  check_values(object);
  int flags = access == Access::kWrite ? PyBUF_WRITABLE : PyBUF_SIMPLE;
  if (PyObject_GetBuffer(object.ptr(), &view_, flags) == 0) {
    data_ = static_cast<uint8_t*>(view_.buf);
    size_ = static_cast<size_t>(view_.len);
    return;
  }
  PyErr_Clear();
  Py_buffer probe;
  if (PyObject_GetBuffer(object.ptr(), &probe, PyBUF_SIMPLE) == 0) {
    PyBuffer_Release(&probe);
    refuse_read_only(object);
  }
  PyErr_Clear();
  if (PyObject_GetBuffer(object.ptr(), &probe, PyBUF_STRIDED_RO) == 0) {
    bool contiguous = PyBuffer_IsContiguous(&probe, 'C') != 0;
    PyBuffer_Release(&probe);
    if (!contiguous) refuse_strides(object);
  }
  PyErr_Clear();
  raise_invalid("the " + name_of_type(object) + " gives no buffer: " + text);
}

void Buffer::share(const Buffer& other, Access access) {
  if (other.view_.obj) return acquire(other.view_.obj, {access, nullptr});
  data_ = other.data_;
  size_ = other.size_;
  memory_ = other.memory_;
  object_ = other.object_;
  managed_ = other.managed_;
}

void Buffer::check_address(nb::handle object) const {
  if (data_ || size_ == 0) return;
  raise_invalid(
      "the " + name_of_type(object) + " has no memory behind its " + std::to_string(size_) +
      " bytes: it is a placeholder, wraps other tensors or was freed; use the tensor that "
      "has the values (such as DTensor.to_local())");
}

void Buffer::release() {
  if (view_.obj) PyBuffer_Release(&view_);
  view_ = {};
  managed_.reset();
  object_.reset();
  data_ = nullptr;
  size_ = 0;
  memory_ = Memory::kHost;
  stream_told_ = false;
}

bool is_contiguous(size_t ndim, const int64_t* shape, const int64_t* strides, int64_t unit) {
  if (!strides || std::find(shape, shape + ndim, 0) != shape + ndim) return true;
  int64_t expected = unit;
  for (size_t i = ndim; i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

void refuse_strides(nb::handle object) {
  raise_invalid("the " + name_of_type(object) +
                " is not C-contiguous: send a contiguous copy (numpy.ascontiguousarray, "
                "tensor.contiguous), or receive into one and copy from it");
}

void refuse_read_only(nb::handle object) {
  raise_invalid("the " + name_of_type(object) +
                " is read-only: what is received or registered needs a writable buffer, such as a "
                "bytearray or a writable array; register takes it with access=\"r\"");
}

void refuse_objects(nb::handle object) {
  raise_invalid("the " + name_of_type(object) +
                " holds Python objects, which mean nothing elsewhere");
}

void refuse_copy(nb::handle object) {
  raise_invalid(
      "the " + name_of_type(object) +
      " shows a copy of its memory, so it would never get what is received, nor peers what "
      "is written to it: receive into host memory or a tensor that shares its own, and "
      "copy from it");
}

void refuse_device(nb::handle object, const char* why) {
  throw OperationError(OH_ERR_NOT_VIABLE, "the " + name_of_type(object) + " is GPU memory, " + why);
}

}  // namespace onehop::python
