// SPDX-License-Identifier: Apache-2.0
//
// Exporter: how the objects of a type give their memory, and which stream their library works on.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "dlpack.h"

namespace onehop::python {

namespace nb = nanobind;

struct Exporter {
  enum class Library { kOther, kTorch, kCupy };

  // What is known of this type. Found out once per type.
  static Exporter of(PyTypeObject* type);

  // Whether its library tells its current stream without being asked for an array's.
  bool knows_stream() const { return exchange || library != Library::kOther; }
  // The CUstream that it works on now; null, the legacy default stream, where it does not tell.
  void* current_stream(int device) const;

  const dlpack::Exchange* exchange = nullptr;  // null: none, or none that is understood
  Library library = Library::kOther;
  bool masked = false;  // an array of numpy.ma
};

// Streams as the array interfaces number them: 1 is the legacy default stream.
void* stream_from_number(nb::handle number);

// Forgets all types; at exit, so that nothing seems to leak.
void forget_exporters();

}  // namespace onehop::python
