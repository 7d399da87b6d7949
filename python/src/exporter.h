// SPDX-License-Identifier: Apache-2.0
//
// Exporter: how the objects of a type export their memory, and the current stream of their library.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "dlpack.h"

namespace onehop::python {

namespace nb = nanobind;

struct Exporter {
  enum class Library { kOther, kTorch, kCupy };

  // Returns the facts of a type; determined once per type.
  static Exporter of(PyTypeObject* type);

  // Whether the library reports its current stream without an array.
  bool knows_stream() const { return exchange || library != Library::kOther; }
  // The library's current CUstream; null, the legacy default stream, if it does not report one.
  void* current_stream(int device) const;

  const dlpack::Exchange* exchange = nullptr;  // null: none, or an unsupported version
  Library library = Library::kOther;
  bool masked = false;  // an array of numpy.ma
};

// Converts a stream number of the array interfaces, where 1 is the legacy default stream.
void* stream_from_number(nb::handle number);

// Clears the cache, at exit, so that nothing is reported as leaked.
void forget_exporters();

}  // namespace onehop::python
