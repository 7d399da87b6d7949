// SPDX-License-Identifier: Apache-2.0
#include "errors.h"

namespace nb = nanobind;

namespace onehop::python {
namespace {

// The exception class of a status code: its own, or that of its scope.
const char* class_name(const Error& error) {
  if (dynamic_cast<const TypeMismatch*>(&error)) return "InvalidType";
  switch (error.status()) {
    case OH_ERR_INVALID:
      return "InvalidArgument";
    case OH_ERR_RANGE:
      return "OutOfRange";
    case OH_ERR_TIMEOUT:
      return "TimeoutError";
    case OH_ERR_PEER_LOST:
      return "PeerLost";
    default:
      break;
  }
  switch (error.scope()) {
    case OH_SCOPE_NONE:  // OH_IN_PROGRESS or OH_AGAIN of a call that cannot report them otherwise
    case OH_SCOPE_OPERATION:
      return "OperationError";
    case OH_SCOPE_LINK:
      return "LinkError";
    case OH_SCOPE_ENDPOINT:
      return "EndpointError";
  }
  return "Error";
}

// "TIMEOUT" for OH_ERR_TIMEOUT, "OK" for OH_OK.
const char* short_name(const char* name) {
  bool is_error = std::string_view(name).substr(0, 7) == "OH_ERR_";
  return name + (is_error ? 7 : 3);
}

// The C++ exception's text without the code's name, which is an attribute in Python.
std::string_view text_of(const Error& error) {
  std::string_view text = error.what();
  std::string_view name = oh_status_name(error.status());
  if (text.substr(0, name.size()) == name) text.remove_prefix(name.size() + 2);
  return text;
}

}  // namespace

void throw_status(oh_status status, const std::string& text) {
  // The Python class is chosen by status when the exception is translated.
  throw Error(status, text);
}
void raise_invalid(const std::string& text) { throw OperationError(OH_ERR_INVALID, text); }
void raise_range(const std::string& text) { throw OperationError(OH_ERR_RANGE, text); }

nb::str to_text(std::string_view text) {
  return nb::steal<nb::str>(
      PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), "backslashreplace"));
}

nb::object exception_for(const Error& error) {
  std::string_view text = text_of(error);
  nb::object type = nb::module_::import_("onehop.errors").attr(class_name(error));
  return type(nb::cast(error.status()), to_text(text));
}

std::string name_of_type(nb::handle object) { return Py_TYPE(object.ptr())->tp_name; }

std::string shown(nb::handle object) {
  nb::object bytes =
      nb::steal(PyUnicode_AsEncodedString(nb::str(object).ptr(), "utf-8", "backslashreplace"));
  if (!bytes.is_valid()) throw nb::python_error();
  return {PyBytes_AS_STRING(bytes.ptr()), static_cast<size_t>(PyBytes_GET_SIZE(bytes.ptr()))};
}

std::string text_of(const nb::python_error& error) { return shown(error.value()); }

std::string take_python_error() { return text_of(nb::python_error()); }

void bind_errors(nb::module_& module) {
  nb::enum_<oh_status> status(
      module, "Status", nb::is_arithmetic(),
      "The status of a call: OH_STATUS_LIST of the C API, without its prefixes.");
#define OH_PYTHON_STATUS(name, number, scope, text) status.value(short_name(#name), name, text);
  OH_STATUS_LIST(OH_PYTHON_STATUS)
#undef OH_PYTHON_STATUS
  nb::enum_<oh_scope>(module, "Scope", nb::is_arithmetic(),
                      "What to rebuild after an error before the work can continue.")
      .value("NONE", OH_SCOPE_NONE, "nothing: success, or not yet")
      .value("OPERATION", OH_SCOPE_OPERATION, "nothing but the operation")
      .value("LINK", OH_SCOPE_LINK, "the link to the peer")
      .value("ENDPOINT", OH_SCOPE_ENDPOINT, "the endpoint");

  nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
    try {
      std::rethrow_exception(pointer);
    } catch (const Error& error) {
      nb::object exception = exception_for(error);
      PyErr_SetObject(exception.type().ptr(), exception.ptr());
    }
  });
  module.def(
      "status_scope", [](oh_status of) { return oh_status_scope(of); }, nb::arg("status"),
      "What to rebuild after this status.");
  module.def(
      "status_text", [](oh_status of) { return oh_status_text(of); }, nb::arg("status"),
      "One line of text for a status.");
  module.def(
      "status_list",
      [] {
        nb::list rows;
#define OH_PYTHON_ROW(name, number, scope, text) rows.append(nb::make_tuple(#name, number));
        OH_STATUS_LIST(OH_PYTHON_ROW)
#undef OH_PYTHON_ROW
        return rows;
      },
      nb::sig("def status_list() -> list[tuple[str, int]]"),
      "The C API's list of status codes: names and values.");
}

}  // namespace onehop::python
