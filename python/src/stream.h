// SPDX-License-Identifier: Apache-2.0
//
// The stream API: a peer or communicator together with a stream; and lanes for kernels.
//
// Threading: needs the GIL.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "comm.h"
#include "errors.h"
#include "held.h"

namespace onehop::python {

// The result of Peer.on.
struct PyOnStream {
  std::shared_ptr<Link> link;
  GivenStream stream;
};

// The result of Communicator.on.
struct PyCommunicatorOnStream {
  nb::object owner;
  PyCommunicator* communicator;  // the owner's
  GivenStream stream;
};

GivenStream given_stream(nb::handle stream);
// "stream 0x...", for texts.
std::string name_of(const GivenStream& stream);

// The Python arguments of a send or a receive.
struct StreamTransfer {
  nb::handle buffer;
  uint32_t lane;
  nb::handle timeout;
  nb::handle size;  // size_from or size_to: device memory of 8 bytes, or None
};
void stream_send(Link& link, const GivenStream& stream, const StreamTransfer& transfer);
void stream_recv(Link& link, const GivenStream& stream, const StreamTransfer& transfer);

// Creates the object that holds the local memory of one operation.
std::unique_ptr<Held> begin_on(Link& link, const GivenStream& stream, nb::handle object,
                               Access access);
// Raises if the local memory is host memory; `what` names it in the text.
void check_on_device(const std::string& what, const Local& local);
// Enqueues with `call`, which returns a status, and holds the memory for the stream. Also holds it
// after any failure other than an invalid argument, because a part may have been enqueued.
template <typename Call>
void enqueue(std::unique_ptr<Held> held, Call call) {
  oh_status status;
  {
    WithoutGil release;
    status = call();
  }
  const std::string text = status == OH_OK ? std::string() : oh_error_text();
  if (status != OH_ERR_INVALID && status != OH_ERR_RANGE) hold(std::move(held));
  if (status != OH_OK) throw_status(status, text);
}

void bind_stream_batches(nb::class_<PyOnStream>& type);
void bind_stream_region_batches(nb::class_<PyOnStream>& type);

// Shared arguments in signatures.
#define OH_PYTHON_STREAM_ARGUMENTS(size)                                 \
  ", lane: typing.SupportsIndex = 0, timeout: float | None = ..., " size \
  ": onehop.buffers.Buffer | None = None"

}  // namespace onehop::python
