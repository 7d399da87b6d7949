// SPDX-License-Identifier: Apache-2.0
//
// Streams and events as arguments: `after`, what an operation waits for before it touches the
// memory of a GPU; and the streams that operations are given to.
//
// Threading: needs the GIL.
#pragma once

#include <nanobind/nanobind.h>

#include "buffer.h"
#include "onehop/onehop.hpp"

namespace onehop::python {

// What `after` stands for in a transfer of this buffer: None, a stream, an event, or
// onehop.CURRENT_STREAM. Raises InvalidType for anything else. `on_gpu`: of the endpoint, which
// else waits for no GPU.
After after_of(nb::handle after, const Buffer& buffer, bool on_gpu);

// The CUstream that a stream's object, or its number, stands for. Raises InvalidType for events and
// all else.
void* stream_of(nb::handle stream);

// onehop.CURRENT_STREAM: the default of `after`.
nb::object current_stream_object();
void bind_after(nb::module_& module);

// Forgets the types of streams; at exit.
void forget_stream_types();

// The argument in signatures and docstrings.
#define OH_PYTHON_AFTER_ARGUMENT ", after: onehop.devices.After = CURRENT_STREAM"
#define OH_PYTHON_AFTER                                                              \
  "after: the GPU work to wait for before GPU memory is accessed: a stream or an\n"  \
  "event; None: nothing; omitted: the current stream of the buffer's library. For\n" \
  "host memory the default is to wait for nothing."

}  // namespace onehop::python
