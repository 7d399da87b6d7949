// SPDX-License-Identifier: Apache-2.0
#include "endpoint.h"

#include <nanobind/stl/string.h>

#include <algorithm>
#include <string>

#include "arguments.h"
#include "bytes.h"
#include "errors.h"
#include "held.h"
#include "names.h"

namespace onehop::python {
namespace {

PyPeer connect(PyEndpoint& self, nb::handle address, nb::handle timeout) {
  self.context->check();
  Timeout limit{timeout_ns(timeout, self.context->default_timeout_ns())};
  Peer peer = call_interruptibly([context = self.context, to = from_bytes(address), limit] {
    return context->endpoint().connect(to, limit);
  });
  return PyPeer{Link::of(self.context, std::move(peer))};
}

// Converts the access of peers to a region.
Access access_of(nb::handle given) {
  const std::string access = string(given, {"access", "\"r\" or \"rw\""});
  if (access == "rw") return Access::kWrite;
  if (access == "r") return Access::kRead;
  raise_invalid("access " + access + ": it is \"r\" or \"rw\"");
}

PyPeer accept(PyEndpoint& self, nb::handle timeout) {
  self.context->check();
  oh_peer* peer = nullptr;
  wait_in_slices(timeout_ns(timeout, self.context->default_timeout_ns()), [&](int64_t slice) {
    return oh_endpoint_accept(self.context->endpoint().get(), slice, &peer);
  });
  return PyPeer{Link::of(self.context, Peer(peer))};
}

nb::list notifications(PyEndpoint& self) {
  nb::list all;
  EndpointView endpoint = self.context->endpoint();
  while (true) {
    std::optional<std::pair<Message, Bytes>> next;
    {
      WithoutGil release;
      next = endpoint.notification();
    }
    if (!next) return all;
    int64_t source =
        next->first.rank >= 0 ? next->first.rank : static_cast<int64_t>(next->first.peer_id);
    all.append(nb::make_tuple(source, to_bytes(next->second)));
  }
}

void progress(PyEndpoint& self) {
  {
    WithoutGil release;
    self.context->endpoint().progress();
  }
  orphans().sweep_all();
  sweep_all_held();
}

void trim(PyEndpoint& self) {
  WithoutGil release;
  self.context->endpoint().trim();
}

void close(PyEndpoint& self) {
  {
    WithoutGil release;
    self.context->close();
  }
  orphans().sweep_all();
  sweep_all_held();
}

int event_fd(PyEndpoint& self) {
  int fd = -1;
  check(oh_endpoint_event_fd(self.context->endpoint().get(), &fd));
  return fd;
}

void bind_links(nb::class_<PyEndpoint>& type) {
  type.def_prop_ro(
          "address", [](PyEndpoint& self) { return to_bytes(self.context->endpoint().address()); },
          "The address by which peers connect, as bytes. Any holder may connect: treat it\n"
          "as a secret.")
      .def("connect", connect, nb::arg("address").none(),
           nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig(
               "def connect(self, address: onehop.buffers.Buffer, timeout: float | None = ...) -> "
               "Peer"),
           "Connects to the endpoint that has this address.\n\n" OH_PYTHON_TIMEOUT
           "\n"
           "InvalidArgument: not an address, or altered. LinkError: it cannot be reached,\n"
           "refuses, or has another key.")
      .def("accept", accept, nb::arg("timeout").none() = nb::ellipsis(),
           nb::sig("def accept(self, timeout: float | None = ...) -> Peer"),
           "Waits for the next peer that connects to this endpoint.\n\n" OH_PYTHON_TIMEOUT)
      .def(
          "register",
          [](PyEndpoint& self, nb::handle buffer, nb::handle access) {
            orphans().sweep();
            auto memory = std::make_shared<RegionMemory>(self.context, buffer, access_of(access));
            size_t size = memory->buffer->size();
            return PyRegion{std::move(memory), 0, size};
          },
          nb::arg("buffer").none(), nb::arg("access").none() = "rw",
          nb::sig("def register(self, buffer: onehop.buffers.Buffer, access: typing.Literal[\"r\", "
                  "\"rw\"] = \"rw\") -> Region"),
          "Registers a buffer, also one on this endpoint's GPU, so that peers may read and\n"
          "write it. Peers access memory of onehop.empty by plain loads and stores. With\n"
          "access \"r\" puts fail, and the buffer itself may be read-only. This guards\n"
          "against mistakes, not against a hostile peer: one that can access the memory\n"
          "directly can write to it.\n\n"
          "InvalidArgument: access is neither \"r\" nor \"rw\".");
}

void bind_messages(nb::class_<PyEndpoint>& type) {
  type.def(
          "recv",
          [](PyEndpoint& self, nb::handle buffer, nb::handle tag, nb::handle timeout,
             nb::handle after) { return recv_any(self.context, {buffer, tag, after}, timeout); },
          nb::arg("buffer").none(), nb::arg("tag").none() = 0,
          nb::arg("timeout").none() = nb::ellipsis(),
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def recv(self, buffer: onehop.buffers.Buffer, tag: typing.SupportsIndex = 0, "
                  "timeout: float | None = "
                  "..." OH_PYTHON_AFTER_ARGUMENT ") -> Message"),
          "Receives from whichever peer sends first: see Peer.recv.")
      .def(
          "irecv",
          [](PyEndpoint& self, nb::handle buffer, nb::handle tag, nb::handle after) {
            return irecv_any(self.context, {buffer, tag, after});
          },
          nb::arg("buffer").none(), nb::arg("tag").none() = 0,
          nb::arg("after").none() = current_stream_object(),
          nb::sig("def irecv(self, buffer: onehop.buffers.Buffer, tag: typing.SupportsIndex = "
                  "0" OH_PYTHON_AFTER_ARGUMENT ") -> Request"),
          "Nonblocking receive from whichever peer sends first.");
}

constexpr Argument kDevice{"device",
                           "None, \"host\" or \"cpu\" for host memory, the number of a GPU, "
                           "\"cuda:1\", \"GPU-<uuid>\", or an "
                           "object with type and index, such as torch.device(\"cuda:1\")"};

// Validates a device name and returns the C API's name for it.
std::string known_name(nb::handle given, const std::string& name) {
  if (name == "host" || name == "cpu" || name == "cpu:0") return "host";
  std::string start = name.substr(0, 4);
  std::transform(start.begin(), start.end(), start.begin(), [](char c) {
    return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  });
  if (start != "cuda" && start != "gpu-") refuse_value(given, kDevice);
  return name;
}

// Returns the C API's name of a device argument.
std::string device_name(nb::handle given) {
  static const Name kType("type");
  static const Name kIndex("index");
  if (given.is_none()) return "host";
  if (PyUnicode_Check(given.ptr())) return known_name(given, string(given, kDevice));
  if (PyBool_Check(given.ptr())) refuse_type(given, kDevice);
  std::string type = "cuda";
  nb::object index = as_int(given);
  if (!index.is_valid()) {
    nb::object kind = try_attribute(given, kType);
    index = try_attribute(given, kIndex);
    if (!kind.is_valid() || !PyUnicode_Check(kind.ptr()) || !index.is_valid()) {
      refuse_type(given, kDevice);
    }
    type = known_name(kind, string(kind, kDevice));
    if (type == "host" || index.is_none()) return type;
  }
  Py_ssize_t number = PyNumber_AsSsize_t(index.ptr(), nullptr);
  if (number == -1 && PyErr_Occurred()) throw nb::python_error();
  if (number < 0) raise_invalid("device " + std::to_string(number) + ": GPUs are counted from 0");
  return type + ":" + std::to_string(number);
}

}  // namespace

EndpointArguments::EndpointArguments(nb::handle given, nb::handle max_inline,
                                     nb::handle progress_thread)
    : options(detail::sized<oh_endpoint_options>()) {
  device = device_name(given);
  options.device = device.c_str();
  options.progress_thread = flag(progress_thread, {"progress_thread", "True or False"});
  if (max_inline.is_none()) return;
  options.set_max_inline = 1;
  options.max_inline = whole_number(max_inline, {"max_inline", "a number of bytes, 0 to 65536"});
}

void bind_endpoint(nb::module_& module) {
  nb::class_<PyEndpoint> type(
      module, "Endpoint", nb::is_weak_referenceable(),
      "This process's end on one device. An endpoint owns links, regions and progress.\n"
      "Any thread may use it. A context manager that closes it.");
  type.def(
          "__init__",
          [](PyEndpoint* self, nb::handle device, nb::handle max_inline,
             nb::handle progress_thread) {
            EndpointArguments arguments(device, max_inline, progress_thread);
            std::shared_ptr<Context> context;
            {
              WithoutGil release;
              context = Context::create(arguments.options);
            }
            new (self) PyEndpoint{std::move(context)};
          },
          nb::arg("device") = nb::none(), nb::arg("max_inline") = nb::none(),
          nb::arg("progress_thread").none() = false,
          nb::sig("def __init__(self, device: onehop.devices.Device = None, max_inline: "
                  "typing.SupportsIndex | None "
                  "= None, "
                  "progress_thread: bool = False) -> None"),
          "Creates an endpoint.\n\n"
          "device: None, \"host\" or \"cpu\" for host memory; for a GPU its number N, \"cuda:N\",\n"
          "`\"GPU-<uuid>\"`, or an object with type and index, such as\n"
          "torch.device(\"cuda:1\"). An endpoint on a GPU moves host memory too.\n"
          "max_inline: bytes to carry inside a control message, 0 to 65536; Peer.info\n"
          "returns the granted value.\n"
          "progress_thread: a thread makes progress while no thread waits.\n\n"
          "EndpointError: an ONEHOP_* variable is invalid, or libcrypto was not found.\n"
          "OperationError with Status.NOT_VIABLE, or InvalidArgument: the process has no\n"
          "such device.")
      .def("progress", progress,
           "Makes progress on the operations that no thread waits for. Never blocks.")
      .def("trim", trim,
           "Withdraws the device memory that peers have mapped for transfers without a\n"
           "Region. A free of that memory then takes effect at once; otherwise it takes up\n"
           "to 100 ms. Memory that is used again is mapped again.")
      .def(
          "pools", [](PyEndpoint& self) { return pools(self.context->endpoint()); },
          nb::sig("def pools(self) -> dict[str, onehop.records.PoolStats]"),
          "Counters of the pools of buffers for transfers to and from other hosts:\n"
          "\"pipeline\", host memory on its way to UCX, and \"staging\", pinned memory that\n"
          "carries device memory. All zero without a link over UCX, or without a GPU.")
      .def("notifications", notifications,
           nb::sig("def notifications(self) -> list[tuple[int, bytes]]"),
           "Takes the notifications that have arrived, oldest first: (source, bytes) each.\n"
           "For the source see Message.source.")
      .def_prop_ro("event_fd", event_fd,
                   "A descriptor that becomes readable when a request that was passed to\n"
                   "Request.arm() has ended. The endpoint owns it.")
      .def("close", close,
           "Closes all links. Operations in flight are cancelled; blocked calls raise. May\n"
           "be called again.")
      .def(
          "__enter__", [](nb::handle self) { return nb::borrow(self); },
          nb::sig("def __enter__(self) -> Endpoint"))
      .def(
          "__exit__", [](PyEndpoint& self, nb::args) { close(self); },
          nb::sig("def __exit__(self, *args: object) -> None"))
      .def("__repr__", [](PyEndpoint& self) {
        const Context& context = *self.context;
        return to_text("<onehop.Endpoint on " + context.device() +
                       (context.is_communicator() ? ", of a communicator" : "") +
                       (context.is_closed() ? ", closed>" : ">"));
      });
  bind_links(type);
  bind_waits(module, type);
  bind_messages(type);
}

}  // namespace onehop::python
