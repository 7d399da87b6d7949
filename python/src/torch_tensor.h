// SPDX-License-Identifier: Apache-2.0
//
// torch tensors whose bytes are not their values: lazily conjugated or negated views, and tensors
// without plain memory.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace onehop::python {

// Refuses a tensor with a pending lazy conjugation or negation. `complex`: whether its elements are
// complex; only these can be conjugated.
void refuse_lazy_views(nanobind::handle tensor, bool complex);

// Returns the tensor, detached if it requires a gradient: torch does not export such tensors, and
// transfers bypass autograd.
nanobind::object without_gradient(nanobind::handle tensor);

// Refuses a tensor that torch did not export for the reason in `text`; suggests what to send
// instead.
[[noreturn]] void refuse_export(nanobind::handle tensor, const std::string& text);

}  // namespace onehop::python
