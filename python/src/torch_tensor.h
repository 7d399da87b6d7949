// SPDX-License-Identifier: Apache-2.0
//
// Tensors of torch whose bytes are not their values: lazily conjugated or negated views, and all
// that has no plain memory.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace onehop::python {

// Refuses a tensor whose conjugation or negation is still to be done. `complex`: of its elements;
// only those can be conjugated.
void refuse_lazy_views(nanobind::handle tensor, bool complex);

// The tensor, or the same memory without its gradient: torch exports no tensor that requires one,
// and bytes are moved outside of autograd.
nanobind::object without_gradient(nanobind::handle tensor);

// Refuses a tensor that torch did not export for the reason in `text`; says what to send instead.
[[noreturn]] void refuse_export(nanobind::handle tensor, const std::string& text);

}  // namespace onehop::python
