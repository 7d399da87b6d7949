// SPDX-License-Identifier: Apache-2.0
#include "exporter.h"

#include <string>

#include "errors.h"
#include "names.h"
#include "type_cache.h"

namespace onehop::python {
namespace {

// Never destroyed: the interpreter may already be finalized.
TypeCache<Exporter>& cache() {
  static auto* const instance = new TypeCache<Exporter>;
  return *instance;
}

// Whether `type` is, or derives from, the class `name` of an already imported module.
bool derives_from(PyTypeObject* type, const char* module, const Name& name) {
  PyObject* found = PyDict_GetItemString(PyImport_GetModuleDict(), module);
  if (!found) return false;
  nb::object base = try_attribute(found, name);
  return base.is_valid() && PyType_Check(base.ptr()) &&
         PyType_IsSubtype(type, reinterpret_cast<PyTypeObject*>(base.ptr()));
}

// Returns the table of the supported major version; null if there is none.
const dlpack::Exchange* usable(void* table) {
  auto* header = static_cast<dlpack::ExchangeHeader*>(table);
  while (header && header->version.major != dlpack::kMajor) header = header->previous;
  const auto* exchange = reinterpret_cast<const dlpack::Exchange*>(header);
  if (!exchange || !exchange->managed_from_object || !exchange->current_stream) return nullptr;
  return exchange;
}

const dlpack::Exchange* exchange_of(PyTypeObject* type) {
  static const Name kExchange("__dlpack_c_exchange_api__");
  nb::object table = try_attribute(reinterpret_cast<PyObject*>(type), kExchange);
  if (!table.is_valid()) return nullptr;
  void* address = nullptr;
  if (PyCapsule_CheckExact(table.ptr())) {
    address = PyCapsule_GetPointer(table.ptr(), "dlpack_exchange_api");
  } else if (PyLong_CheckExact(table.ptr())) {  // preview versions used an int
    address = PyLong_AsVoidPtr(table.ptr());
  }
  PyErr_Clear();
  return usable(address);
}

void* torch_stream(int device) {
  // torch's internal getter, which takes 60 ns; null: use the public API below.
  static const nb::handle kGetter = [] {
    static const Name kInternals("_C");
    static const Name kName("_cuda_getCurrentRawStream");
    nb::object internals = try_attribute(nb::module_::import_("torch"), kInternals);
    return internals.is_valid() ? try_attribute(internals, kName).release() : nb::handle();
  }();
  if (kGetter.is_valid()) return stream_from_number(kGetter(device));
  nb::object cuda = nb::module_::import_("torch").attr("cuda");
  return stream_from_number(cuda.attr("current_stream")(device).attr("cuda_stream"));
}

void* cupy_stream() {
  nb::object cuda = nb::module_::import_("cupy").attr("cuda");
  return stream_from_number(cuda.attr("get_current_stream")().attr("ptr"));
}

}  // namespace

Exporter Exporter::of(PyTypeObject* type) {
  if (const Exporter* known = cache().find(type)) return *known;
  static const Name kTensor("Tensor");
  static const Name kArray("ndarray");
  static const Name kMaskedArray("MaskedArray");
  Exporter made;
  made.exchange = exchange_of(type);
  if (derives_from(type, "torch", kTensor)) made.library = Library::kTorch;
  if (derives_from(type, "cupy", kArray)) made.library = Library::kCupy;
  made.masked = derives_from(type, "numpy.ma", kMaskedArray);
  cache().put(type, made);
  return made;
}

void* Exporter::current_stream(int device) const {
  if (exchange) {
    void* stream = nullptr;
    if (exchange->current_stream(dlpack::kCuda, device, &stream) == 0) return stream;
    if (PyErr_Occurred()) throw nb::python_error();
    raise_invalid("the C exchange API of the buffer's type does not tell its stream on cuda:" +
                  std::to_string(device) + ": pass after=..., a stream or None");
  }
  switch (library) {
    case Library::kTorch:
      return torch_stream(device);
    case Library::kCupy:
      return cupy_stream();
    case Library::kOther:
      break;
  }
  return nullptr;
}

void* stream_from_number(nb::handle number) {
  void* stream = PyLong_AsVoidPtr(number.ptr());
  if (!stream && PyErr_Occurred()) throw nb::python_error();
  return reinterpret_cast<uintptr_t>(stream) == 1 ? nullptr : stream;
}

void forget_exporters() { cache().clear(); }

}  // namespace onehop::python
