// SPDX-License-Identifier: Apache-2.0
//
// onehop._core: bindings of the C++ API.
#include <cstdlib>

#include "bytes.h"
#include "endpoint.h"
#include "errors.h"
#include "held.h"

namespace {

// Adds __signature__ to the type of the object: Python code cannot modify nanobind's types for
// functions and bound methods. Called during the import of the package, before any lookup.
void add_signature(nanobind::handle object, nanobind::handle property) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (PyDict_SetItemString(type->tp_dict, "__signature__", property.ptr()) != 0) {
    throw nanobind::python_error();
  }
  PyType_Modified(type);
}

}  // namespace

NB_MODULE(_core, module) {
  using namespace onehop::python;  // NOLINT: binds the whole namespace
  namespace nb = nanobind;
  module.doc() = "The compiled part of onehop. Use the package.";
  // Set the module of all classes to the package, where users find them. Not for nanobind's stub
  // generator, which would then import them from there.
  nb::object own_name = module.attr("__name__");
  if (!std::getenv("NB_STUBGEN")) module.attr("__name__") = "onehop";
  watch_forks();
  bind_errors(module);
  bind_records(module);
  bind_metrics(module);
  bind_shared(module);
  bind_after(module);
  bind_region(module);
  bind_request(module);
  bind_stream(module);
  bind_peer(module);
  bind_endpoint(module);
  bind_communicator(module);

  module.attr("ANY_TAG") = nb::int_(OH_ANY_TAG);
  module.attr("ANY_SOURCE") = nb::int_(-1);
  module.def("version", [] { return oh_version(); }, "The version of the library.");
  module.def(
      "unique_id",
      [] {
        onehop::Bytes id;
        {
          WithoutGil release;
          id = onehop::unique_id();
        }
        return to_bytes(id);
      },
      "The id that all ranks of one Communicator share, as bytes. Pass it to them by\n"
      "any means. This process serves the rendezvous until all ranks have joined, or\n"
      "until ONEHOP_TIMEOUT.");
  module.def(
      "shut_down",
      [] {
        begin_exit();
        {
          WithoutGil release;
          close_all();
        }
        await_parked();
        forget_exporters();
        forget_stream_types();
        // Memory that a peer may still write is leaked on purpose.
        if (orphans().sweep_all() + sweep_all_held() > 0) nb::set_leak_warnings(false);
      },
      "Closes all endpoints and communicators of this process. For the process's exit:\n"
      "threads blocked in a call never return from it.");
  module.def("add_signature", add_signature, nb::arg("object"), nb::arg("property"),
             "For onehop.signatures.");
  module.attr("__name__") = own_name;
}
