// SPDX-License-Identifier: Apache-2.0
//
// Queries of the library as objects of onehop.records.
#include <nanobind/stl/string.h>

#include "endpoint.h"
#include "errors.h"
#include "gil.h"

namespace onehop::python {
namespace {

nb::object record(const char* name) { return nb::module_::import_("onehop.records").attr(name); }

// Converts all rows of a C API function that is indexed until OH_ERR_RANGE.
template <typename Row, typename Get, typename Make>
nb::list rows(Get get, Make make) {
  nb::list all;
  for (size_t i = 0;; ++i) {
    auto row = detail::sized<Row>();
    oh_status status = get(i, &row);
    if (status == OH_ERR_RANGE) return all;
    check(status);
    all.append(make(row));
  }
}

// Counters of the paths that were used.
nb::dict counters(const uint64_t* operations, const uint64_t* bytes) {
  nb::object type = record("Counter");
  nb::dict all;
  for (int path = 0; path < OH_PATH_COUNT; ++path) {
    if (operations[path] == 0) continue;
    all[oh_path_name(static_cast<oh_path>(path))] = type(operations[path], bytes[path]);
  }
  return all;
}

nb::object transports() {
  nb::object type = record("Transport");
  return rows<oh_transport_info>(oh_transport_get, [&](const oh_transport_info& row) {
    return type(row.name, row.viable != 0, to_text(row.why));
  });
}

nb::object config() {
  nb::object type = record("Variable");
  return rows<oh_config_entry>(oh_config_get, [&](const oh_config_entry& row) {
    return type(row.name, row.type, row.allowed, row.standard, row.meaning, row.hidden != 0);
  });
}

nb::object devices() {
  nb::object type = record("Gpu");
  return rows<oh_device_info>(oh_device_get, [&](const oh_device_info& row) {
    return type(row.ordinal, to_text(row.name), row.uuid, row.pci, row.major, row.minor,
                row.numa_node < 0 ? nb::object(nb::none()) : nb::object(nb::int_(row.numa_node)));
  });
}

// Links from one device to all devices.
nb::list links_from(size_t from) {
  nb::object type = record("GpuLink");
  auto get = [from](size_t to, oh_device_link* link) {
    WithoutGil release;  // the first query of NVML is slow
    return oh_device_get_link(from, to, link);
  };
  return rows<oh_device_link>(get, [&](const oh_device_link& row) {
    return type(oh_link_name(row.link), row.nvlinks, row.nvlink_bandwidth, row.peer_access != 0,
                row.native_atomics != 0, to_text(row.text));
  });
}

nb::object numa_nodes() {
  nb::object type = record("NumaNode");
  return rows<oh_numa_node>(oh_numa_node_get, [&](const oh_numa_node& row) {
    return type(row.node, row.cpus, row.usable);
  });
}

// Size in bytes of the embedded kernels; 0 if the build has none.
size_t kernel_image_size() {
  const void* data = nullptr;
  size_t size = 0;
  oh_status status = oh_kernel_image(&data, &size);
  if (status == OH_ERR_NOT_VIABLE) return 0;
  check(status);
  return size;
}

}  // namespace

nb::object peer_info(Link& link) {
  oh_peer_info info = link.peer->info();
  return record("PeerInfo")(
      info.id, to_text(info.label),
      info.rank < 0 ? nb::object(nb::none()) : nb::object(nb::int_(info.rank)),
      oh_path_name(info.path), info.max_inline, info.eager_max, info.eager_credit,
      info.single_copy != 0, info.target_progress != 0,
      static_cast<double>(info.unresponsive_ns) / 1e9);
}

nb::object peer_stats(Link& link) {
  oh_peer_stats stats = link.peer->stats();
  return record("PeerStats")(counters(stats.sent_operations, stats.sent_bytes),
                             counters(stats.received_operations, stats.received_bytes),
                             stats.unexpected, stats.out_of_credit, stats.rtrs_used,
                             stats.back_pressure, stats.timeouts, stats.cancelled, stats.stream_put,
                             stats.stream_staged, stats.packed, stats.deferred);
}

nb::dict pools(const EndpointView& endpoint) {
  nb::object type = record("PoolStats");
  nb::dict all;
  for (auto [name, which] :
       {std::pair("pipeline", OH_POOL_PIPELINE), {"staging", OH_POOL_STAGING}}) {
    const oh_pool_stats stats = endpoint.pool(which);
    all[name] = type(stats.buffer_size, stats.limit, stats.buffers, stats.in_use, stats.peak,
                     stats.shortages);
  }
  return all;
}

nb::object peer_stream_info(Link& link) {
  oh_stream_info info = link.peer->stream_info();
  return record("StreamInfo")(info.ready != 0, oh_path_name(info.path), info.small_max,
                              info.stream_buffered, info.device_memory, to_text(info.why_not),
                              to_text(info.why_no_kernels));
}

nb::object peer_paths(Link& link) {
  nb::object type = record("PathRow");
  auto get = [&](size_t index, oh_path_row* row) {
    return oh_peer_get_path(link.get(), index, row);
  };
  return rows<oh_path_row>(get, [&](const oh_path_row& row) {
    return type(row.operation, row.source, row.target, row.first, row.last, oh_path_name(row.path),
                row.method, to_text(row.why));
  });
}

void bind_records(nb::module_& module) {
  module.def("transports", transports,
             nb::sig("def transports() -> list[onehop.records.Transport]"),
             "The transports of this build: viable here, or why not.");
  module.def("config", config, nb::sig("def config() -> list[onehop.records.Variable]"),
             "All ONEHOP_* variables: meaning, allowed values, and present value.");
  module.def("devices", devices, nb::sig("def devices() -> list[onehop.records.Gpu]"),
             "The GPUs that this process sees. Error: there is no driver.");
  module.def("links_from", links_from, nb::arg("device"),
             nb::sig("def links_from(device: int) -> list[onehop.records.GpuLink]"),
             "The links of a GPU, given by its index in devices(), to each of them.");
  module.def("numa_nodes", numa_nodes, nb::sig("def numa_nodes() -> list[onehop.records.NumaNode]"),
             "The NUMA nodes of this host; empty if the system does not list them.");
  module.def("kernel_image_size", kernel_image_size,
             "Bytes of the CUDA kernels in this build; 0: built without.");
}

}  // namespace onehop::python
