// SPDX-License-Identifier: Apache-2.0
#include "torch_tensor.h"

#include <nanobind/stl/string.h>

#include "errors.h"
#include "names.h"

namespace nb = nanobind;

namespace onehop::python {
namespace {

// A method of torch.Tensor, for all its subclasses; null if this version of torch lacks it, and
// thus the feature that it tests. Never freed.
PyObject* tensor_method(const char* name) {
  nb::object type = nb::module_::import_("torch").attr("Tensor");
  return try_attribute(type, Name(name)).release().ptr();
}

bool ask(PyObject* method, nb::handle tensor) {
  if (!method) return false;
  PyObject* argument = tensor.ptr();
  nb::object answer = nb::steal(PyObject_Vectorcall(method, &argument, 1, nullptr));
  // Placeholders such as torch.nn.UninitializedParameter raise on every query.
  if (!answer.is_valid()) refuse_export(tensor, take_python_error());
  return answer.ptr() == Py_True;
}

// Whether the tensor has the attribute and it is True.
bool is_true(nb::handle tensor, const char* name) {
  nb::object value = try_attribute(tensor, Name(name));
  return value.is_valid() && value.ptr() == Py_True;
}

// Describes the kind of tensor, and the fix; empty for unknown kinds.
std::string kind_of(nb::handle tensor) {
  if (is_true(tensor, "is_meta"))
    return "is on the meta device, without memory: create it on a real one";
  if (is_true(tensor, "is_quantized")) {
    return "is quantized: send tensor.int_repr() with its scale and zero point";
  }
  if (is_true(tensor, "is_nested")) {
    return "is nested: send the tensors of tensor.unbind(), or its values and offsets";
  }
  nb::object layout = try_attribute(tensor, Name("layout"));
  std::string name = layout.is_valid() ? shown(layout) : "torch.strided";
  if (name == "torch.strided") return {};
  return "has the layout " + name +
         ": send its parts (such as tensor.values() and tensor.indices()), or tensor.to_dense()";
}

}  // namespace

void refuse_lazy_views(nb::handle tensor, bool complex) {
  static PyObject* const kIsConjugate = tensor_method("is_conj");
  static PyObject* const kIsNegative = tensor_method("is_neg");
  if (complex && ask(kIsConjugate, tensor)) {
    raise_invalid("the " + name_of_type(tensor) +
                  " is a lazy conjugate, its memory holds the values before conjugation: call "
                  ".resolve_conj() and use the tensor that it returns");
  }
  if (ask(kIsNegative, tensor)) {
    raise_invalid("the " + name_of_type(tensor) +
                  " is a lazy negative, its memory holds the values before negation: call "
                  ".resolve_neg() and use the tensor that it returns");
  }
}

nb::object without_gradient(nb::handle tensor) {
  if (is_true(tensor, "requires_grad")) return tensor.attr("detach")();
  return nb::borrow(tensor);
}

void refuse_export(nb::handle tensor, const std::string& text) {
  std::string kind = kind_of(tensor);
  if (kind.empty()) {
    // torch appends the source location of the error: cut it off.
    kind = "has no plain memory that could be sent or received: " + text.substr(0, text.find('\n'));
  }
  raise_invalid("the " + name_of_type(tensor) + " " + kind);
}

}  // namespace onehop::python
