// SPDX-License-Identifier: Apache-2.0
#include "after.h"

#include <cstring>
#include <string>

#include "arguments.h"
#include "errors.h"
#include "names.h"
#include "type_cache.h"

namespace onehop::python {
namespace {

struct CurrentStream {};

// The only instance of its type. Never freed.
PyObject* g_current_stream = nullptr;

// The attribute that holds the stream or event handle of a type's objects.
struct Holder {
  const Name* attribute = nullptr;  // null: none
  bool is_event = false;
  bool is_protocol = false;  // a method that returns (version, handle)
};

// Never destroyed: the interpreter may already be finalized.
TypeCache<Holder>& cache() {
  static auto* const instance = new TypeCache<Holder>;
  return *instance;
}

// All libraries name their event class "Event"; derived classes count, too.
bool is_event(PyTypeObject* type) {
  for (nb::handle base : nb::borrow<nb::tuple>(type->tp_mro)) {
    const char* name = reinterpret_cast<PyTypeObject*>(base.ptr())->tp_name;
    const char* dot = std::strrchr(name, '.');
    if (std::strcmp(dot ? dot + 1 : name, "Event") == 0) return true;
  }
  return false;
}

Holder find_holder(nb::handle object) {
  static const Name kStream("cuda_stream");        // torch
  static const Name kEvent("cuda_event");          // torch
  static const Name kProtocol("__cuda_stream__");  // cuda.core, cupy
  static const Name kPointer("ptr");               // cupy
  static const Name kHandle("handle");             // numba, cuda.core
  auto has = [object](const Name& name) { return try_attribute(object, name).is_valid(); };
  if (has(kStream)) return {&kStream, false, false};
  if (has(kEvent)) return {&kEvent, true, false};
  if (has(kProtocol)) return {&kProtocol, false, true};
  bool event = is_event(Py_TYPE(object.ptr()));
  if (has(kPointer)) return {&kPointer, event, false};
  if (has(kHandle)) return {&kHandle, event, false};
  return {};
}

Holder holder_of(nb::handle object) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (const Holder* known = cache().find(type)) return *known;
  Holder found = find_holder(object);
  // Do not cache a failure: another object of the type may have an attribute that this one lacks.
  if (found.attribute) cache().put(type, found);
  return found;
}

[[noreturn]] void refuse(nb::handle given) {
  throw TypeMismatch("after is of type " + name_of_type(given) +
                     ": give a CUDA stream or event (of torch, cupy, numba, cuda.core), a raw "
                     "stream as an integer, None for nothing to wait for, or "
                     "onehop.CURRENT_STREAM");
}

// Accepts an integer, a ctypes pointer, or an object that converts to an integer.
void* pointer_from(nb::handle value) {
  static const Name kValue("value");
  if (PyLong_Check(value.ptr())) return stream_from_number(value);
  nb::object inner = try_attribute(value, kValue);
  if (inner.is_valid() && inner.is_none()) return nullptr;
  nb::object number = nb::steal(PyNumber_Long(inner.is_valid() ? inner.ptr() : value.ptr()));
  if (!number.is_valid()) throw nb::python_error();
  return stream_from_number(number);
}

void* handle_of(nb::handle object, const Holder& holder) {
  nb::object value = nb::steal(PyObject_GetAttr(object.ptr(), holder.attribute->ptr()));
  if (!value.is_valid()) throw nb::python_error();
  if (holder.is_protocol) {
    if (PyCallable_Check(value.ptr())) value = value();
    if (!PyTuple_Check(value.ptr()) || PyTuple_GET_SIZE(value.ptr()) < 2) refuse(object);
    value = nb::borrow(PyTuple_GET_ITEM(value.ptr(), 1));
  }
  // A torch event that was never recorded has no handle.
  return value.is_none() ? nullptr : pointer_from(value);
}

// Converts a raw stream that the user passed.
void* raw_stream(nb::handle given, const char* name) {
  (void)whole_number(given, {name, "a raw CUDA stream, which is a pointer: 0 to 2**64 - 1"});
  return stream_from_number(given);
}

After after_object(nb::handle given) {
  if (PyBool_Check(given.ptr())) refuse(given);
  if (PyLong_Check(given.ptr())) return After::stream(raw_stream(given, "after"));
  Holder holder = holder_of(given);
  if (!holder.attribute) refuse(given);
  void* handle = handle_of(given, holder);
  if (!holder.is_event) return After::stream(handle);
  // An event that was never recorded counts as complete.
  return handle ? After::event(handle) : After();
}

}  // namespace

After after_of(nb::handle after, const Buffer& buffer, bool on_gpu) {
  if (after.ptr() == g_current_stream) {
    if (!on_gpu || buffer.memory() == Memory::kHost || buffer.size() == 0) return {};
    return After::stream(buffer.current_stream());
  }
  return after.is_none() ? After() : after_object(after);
}

void* stream_of(nb::handle stream) {
  bool flag = PyBool_Check(stream.ptr()) != 0;
  if (PyLong_Check(stream.ptr()) && !flag) return raw_stream(stream, "stream");
  Holder holder = flag || stream.is_none() ? Holder{} : holder_of(stream);
  if (holder.attribute && !holder.is_event) return handle_of(stream, holder);
  throw TypeMismatch("stream is of type " + name_of_type(stream) +
                     ": give a CUDA stream (of torch, cupy, numba, cuda.core) or a raw one as an "
                     "integer; 0 is the legacy default stream");
}

nb::object current_stream_object() { return nb::borrow(g_current_stream); }

void bind_after(nb::module_& module) {
  nb::class_<CurrentStream>(module, "CurrentStream", "The type of onehop.CURRENT_STREAM.")
      .def("__repr__", [](const CurrentStream&) { return "onehop.CURRENT_STREAM"; });
  nb::object only = nb::cast(CurrentStream{});
  g_current_stream = only.ptr();
  module.attr("CURRENT_STREAM") = only;
}

void forget_stream_types() { cache().clear(); }

}  // namespace onehop::python
