// SPDX-License-Identifier: Apache-2.0
//
// Batches as messages, for peers and communicators.
//
// Threading: needs the GIL.
#pragma once

#include "transfer.h"

namespace onehop::python {

// The Python arguments of a batch.
struct BatchTransfer {
  nb::handle local;
  nb::handle offsets;
  nb::handle lengths;
  nb::handle tag;
  nb::handle after;
};

void send_batch(Link& link, const BatchTransfer& transfer, nb::handle timeout);
PyMessage recv_batch(Link& link, const BatchTransfer& transfer, nb::handle timeout);
PyRequest irecv_batch(Link& link, const BatchTransfer& transfer);

// The first parameters of all of them, for signatures.
#define OH_PYTHON_BLOCKS                                                  \
  "self, local: onehop.buffers.Buffer, offsets: onehop.buffers.Offsets, " \
  "lengths: onehop.buffers.Offsets | typing.SupportsIndex"

}  // namespace onehop::python
