// SPDX-License-Identifier: Apache-2.0
//
// Streams and events as arguments: `after`, the GPU work that an operation waits for before it
// accesses GPU memory; and the streams in which operations are enqueued.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "buffer.h"
#include "onehop/onehop.hpp"

namespace onehop::python {

// Converts `after` for a transfer of this buffer: None, a stream, an event, or
// onehop.CURRENT_STREAM. Raises InvalidType for anything else. `on_gpu`: whether the endpoint has a
// GPU; without one CURRENT_STREAM waits for nothing.
After after_of(nb::handle after, const Buffer& buffer, bool on_gpu);

// Returns the CUstream of a stream object or raw handle. Raises InvalidType for events and anything
// else.
void* stream_of(nb::handle stream);

// onehop.CURRENT_STREAM: the default of `after`.
nb::object current_stream_object();
void bind_after(nb::module_& module);

// Clears the cache of stream types, at exit.
void forget_stream_types();

// The `after` argument in signatures and docstrings.
#define OH_PYTHON_AFTER_ARGUMENT ", after: onehop.devices.After = CURRENT_STREAM"
#define OH_PYTHON_AFTER                                                              \
  "after: the GPU work to wait for before GPU memory is accessed: a stream or an\n"  \
  "event; None: nothing; omitted: the current stream of the buffer's library. For\n" \
  "host memory the default is to wait for nothing."

}  // namespace onehop::python
