// SPDX-License-Identifier: Apache-2.0
//
// Buffers of arrays with __cuda_array_interface__, versions 2 and 3, and the streams of buffers.
// https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
#include <charconv>
#include <string>
#include <vector>

#include "buffer.h"
#include "errors.h"
#include "names.h"

namespace onehop::python {
namespace {

const Name& interface_name() {
  static const Name kName("__cuda_array_interface__");
  return kName;
}

[[noreturn]] void refuse_interface(nb::handle object, const std::string& why) {
  raise_invalid("the __cuda_array_interface__ of the " + name_of_type(object) + " " + why);
}

// Returns an entry of the interface; null if it is absent or None.
nb::object entry(nb::handle interface, const char* name) {
  nb::object found = nb::borrow(PyDict_GetItemString(interface.ptr(), name));
  return found.is_valid() && found.is_none() ? nb::object() : found;
}

std::vector<int64_t> numbers(nb::handle object, nb::handle tuple, const char* name) {
  std::vector<int64_t> values;
  if (!tuple.is_valid() || !PyTuple_Check(tuple.ptr())) {
    refuse_interface(object, "has no " + std::string(name) + " that is a tuple");
  }
  for (nb::handle item : nb::borrow<nb::tuple>(tuple)) {
    int64_t value = PyLong_AsLongLong(item.ptr());
    if (value == -1 && PyErr_Occurred()) throw nb::python_error();
    values.push_back(value);
  }
  return values;
}

// Size of an element in bytes, from typestr: 4 for "<f4".
int64_t size_of_element(nb::handle object, nb::handle typestr) {
  std::string_view text;
  if (typestr.is_valid() && PyUnicode_Check(typestr.ptr())) {
    Py_ssize_t size = 0;
    const char* utf8 = PyUnicode_AsUTF8AndSize(typestr.ptr(), &size);
    if (!utf8) throw nb::python_error();
    text = {utf8, static_cast<size_t>(size)};
  }
  constexpr size_t kPrefix = 2;  // byte order and kind
  int64_t count = -1;
  if (text.size() > kPrefix) {
    const char* end = text.data() + text.size();
    auto [stop, fault] = std::from_chars(text.data() + kPrefix, end, count);
    if (fault != std::errc() || stop != end) count = -1;
  }
  if (count < 0) refuse_interface(object, "has no typestr such as \"<f4\"");
  switch (text[1]) {
    case 'O':
      refuse_objects(object);
    case 't':  // bits
      return (count + 7) / 8;
    case 'U':  // characters
      return 4 * count;
    default:
      return count;
  }
}

}  // namespace

bool shows_cuda_array(nb::handle object) {
  return try_attribute(object, interface_name()).is_valid();
}

bool Buffer::acquire_cuda_array(nb::handle object, Wanted wanted) {
  // __dlpack__ supports more types.
  if (exporter_.library == Exporter::Library::kTorch) return false;
  static const Name kDlpack("__dlpack__");
  try {
    bool has_dlpack = PyObject_HasAttr(object.ptr(), kDlpack.ptr()) != 0;
    nb::object interface = has_dlpack ? try_attribute(object, interface_name())
                                      : find_attribute(object, interface_name());
    if (!interface.is_valid()) return false;
    if (!PyDict_Check(interface.ptr())) refuse_interface(object, "is no dict");
    if (wanted.no_device) refuse_device(object, wanted.no_device);
    nb::object data = entry(interface, "data");
    if (!data.is_valid() || !PyTuple_Check(data.ptr()) || PyTuple_GET_SIZE(data.ptr()) != 2) {
      refuse_interface(object, "has no data = (pointer, read-only)");
    }
    int read_only = PyObject_IsTrue(PyTuple_GET_ITEM(data.ptr(), 1));
    if (read_only < 0) throw nb::python_error();
    if (read_only != 0 && wanted.access == Access::kWrite) refuse_read_only(object);
    stream_told_ = PyDict_GetItemString(interface.ptr(), "stream") != nullptr;
    // Before version 3 the interface has no stream; __dlpack__ at least makes the data ready.
    if (!stream_told_ && !exporter_.knows_stream() && has_dlpack) return false;
    if (entry(interface, "mask").is_valid()) refuse_interface(object, "has a mask: send it apart");

    std::vector<int64_t> shape = numbers(object, entry(interface, "shape"), "shape");
    int64_t element = size_of_element(object, entry(interface, "typestr"));
    nb::object strides = entry(interface, "strides");
    if (strides.is_valid()) {
      std::vector<int64_t> given = numbers(object, strides, "strides");
      if (given.size() != shape.size()) refuse_interface(object, "has strides of another shape");
      if (!is_contiguous(shape.size(), shape.data(), given.data(), element)) refuse_strides(object);
    }
    void* address = PyLong_AsVoidPtr(PyTuple_GET_ITEM(data.ptr(), 0));
    nb::object stream = entry(interface, "stream");
    stream_ = stream.is_valid() && !PyErr_Occurred() ? stream_from_number(stream) : nullptr;
    if (PyErr_Occurred()) throw nb::python_error();

    auto size = static_cast<size_t>(element);
    for (int64_t length : shape) {
      if (length < 0) refuse_interface(object, "has a negative length in its shape");
      size *= static_cast<size_t>(length);
    }
    data_ = static_cast<uint8_t*>(address);
    size_ = size;
    memory_ = Memory::kDevice;
    object_ = nb::borrow(object);
    check_address(object);
  } catch (nb::python_error& failure) {
    refuse_interface(object, "cannot be read: " + text_of(failure));
  }
  return true;
}

void* Buffer::current_stream() const {
  if (exporter_.exchange || exporter_.library == Exporter::Library::kTorch) {
    return exporter_.current_stream(device_);
  }
  if (stream_told_) return stream_;
  nb::object interface = try_attribute(object_, interface_name());
  if (interface.is_valid() && PyDict_Check(interface.ptr())) {
    nb::object stream = entry(interface, "stream");
    if (stream.is_valid()) return stream_from_number(stream);
  }
  return exporter_.current_stream(device_);
}

}  // namespace onehop::python
