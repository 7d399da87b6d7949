// SPDX-License-Identifier: Apache-2.0
//
// The Python classes Endpoint, Peer and Communicator.
#pragma once

#include <memory>
#include <string>

#include "context.h"
#include "transfer.h"

namespace onehop::python {

struct PyEndpoint {
  std::shared_ptr<Context> context;
};

// The endpoint options of a constructor, and the text that they point to.
struct EndpointArguments {
  EndpointArguments(nb::handle device, nb::handle max_inline, nb::handle progress_thread);
  EndpointArguments(const EndpointArguments&) = delete;
  std::string device;
  oh_endpoint_options options;
};

// Docstring parts that many functions share.
#define OH_PYTHON_TIMEOUT "timeout: seconds; None: no limit; omitted: ONEHOP_TIMEOUT."

void bind_endpoint(nb::module_& module);
void bind_peer(nb::module_& module);
void bind_waits(nb::module_& module, nb::class_<PyEndpoint>& endpoint);
void bind_waits(nb::class_<PyPeer>& peer);
void bind_one_sided(nb::class_<PyPeer>& peer);
void bind_batches(nb::module_& module, nb::class_<PyPeer>& peer);
void bind_region_batches(nb::class_<PyPeer>& peer);
void bind_message_batches(nb::class_<PyPeer>& peer);
void bind_stream(nb::module_& module);
void bind_lanes(nb::module_& module, nb::class_<PyPeer>& peer);
void bind_communicator(nb::module_& module);
void bind_records(nb::module_& module);
void bind_metrics(nb::module_& module);
void bind_shared(nb::module_& module);

// Rows of the C API converted to objects of onehop.records.
nb::object peer_info(Link& link);
nb::object peer_stats(Link& link);
nb::dict pools(const EndpointView& endpoint);
nb::object peer_paths(Link& link);
nb::object peer_stream_info(Link& link);

}  // namespace onehop::python
