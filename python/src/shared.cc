// SPDX-License-Identifier: Apache-2.0
//
// The memory of onehop.empty: shared with peers, and freed with its last view.
#include <nanobind/stl/string.h>

#include <memory>
#include <string>

#include "arguments.h"
#include "endpoint.h"
#include "errors.h"

namespace onehop::python {
namespace {

struct SharedBuffer {
  Owned<SharedMemory> memory;
  size_t size;
};

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  auto* buffer = nb::inst_ptr<SharedBuffer>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, buffer->memory->data(),
                           static_cast<Py_ssize_t>(buffer->size), /*readonly=*/0, flags);
}

PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};

}  // namespace

void bind_shared(nb::module_& module) {
  nb::class_<SharedBuffer>(
      module, "SharedBuffer", nb::type_slots(slots),
      "Zeroed memory that peers can map, with the buffer protocol. It is freed with its\n"
      "last view.")
      .def(
          "__init__",
          [](SharedBuffer* self, nb::handle nbytes) {
            size_t size = whole_number(nbytes, {"shape", "a number of bytes, or a dtype too"});
            // Allocate at least one byte: an empty allocation would have no address.
            new (self) SharedBuffer{Owned<SharedMemory>(SharedMemory(size ? size : 1)), size};
          },
          nb::arg("nbytes").none(),
          nb::sig("def __init__(self, nbytes: typing.SupportsIndex) -> None"))
      .def("__len__", [](const SharedBuffer& self) { return self.size; })
      .def("__repr__", [](const SharedBuffer& self) {
        return "<onehop.SharedBuffer of " + std::to_string(self.size) + " bytes>";
      });
}

}  // namespace onehop::python
