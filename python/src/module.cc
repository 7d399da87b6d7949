// SPDX-License-Identifier: Apache-2.0
//
// onehop._core: the C++ API for Python.
#include <cstdlib>

#include "bytes.h"
#include "endpoint.h"
#include "errors.h"
#include "held.h"

namespace {

// Adds __signature__ to the type of the object: nanobind's types for functions and bound methods
// are immutable to Python. Done during the import of the package, before any look-up.
void add_signature(nanobind::handle object, nanobind::handle property) {
  PyTypeObject* type = Py_TYPE(object.ptr());
  if (PyDict_SetItemString(type->tp_dict, "__signature__", property.ptr()) != 0) {
    throw nanobind::python_error();
  }
  PyType_Modified(type);
}

}  // namespace

NB_MODULE(_core, module) {
  using namespace onehop::python;  // NOLINT: all of it is bound here
  namespace nb = nanobind;
  module.doc() = "The compiled part of onehop. Use the package.";
  // What is made here names the package as its module: that is where users find it. To nanobind's
  // stub generator it would be another module, to import from.
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
        // Whatever a peer may still write stays for good, on purpose.
        if (orphans().sweep_all() + sweep_all_held() > 0) nb::set_leak_warnings(false);
      },
      "Closes all endpoints and communicators of this process. For the process's exit:\n"
      "threads blocked in a call never return from it.");
  module.def("add_signature", add_signature, nb::arg("object"), nb::arg("property"),
             "For onehop.signatures.");
  module.attr("__name__") = own_name;
}
