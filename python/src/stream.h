// SPDX-License-Identifier: Apache-2.0
//
// The stream domain: a peer, or a communicator, and a stream; and lanes for kernels.
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

// What Peer.on gives.
struct PyOnStream {
  std::shared_ptr<Link> link;
  GivenStream stream;
};

// What Communicator.on gives.
struct PyCommunicatorOnStream {
  nb::object owner;
  PyCommunicator* communicator;  // the owner's
  GivenStream stream;
};

GivenStream given_stream(nb::handle stream);
// "stream 0x...", for messages.
std::string name_of(const GivenStream& stream);

// The arguments of a send or a receive, as Python gave them.
struct StreamTransfer {
  nb::handle buffer;
  uint32_t lane;
  nb::handle timeout;
  nb::handle size;  // size_from or size_to: device memory of 8 bytes, or None
};
void stream_send(Link& link, const GivenStream& stream, const StreamTransfer& transfer);
void stream_recv(Link& link, const GivenStream& stream, const StreamTransfer& transfer);

// What holds the local memory of one operation.
std::unique_ptr<Held> begin_on(Link& link, const GivenStream& stream, nb::handle object,
                               Access access);
// Raises if the local memory is of the host; `what` it is, for the text.
void check_on_device(const std::string& what, const Local& local);
// Enqueues by `call`, which returns a status; then the memory is the stream's. Also when it fails,
// but for its arguments: a part of it may have been enqueued.
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

// The arguments in signatures.
#define OH_PYTHON_STREAM_ARGUMENTS(size)                                 \
  ", lane: typing.SupportsIndex = 0, timeout: float | None = ..., " size \
  ": onehop.buffers.Buffer | None = None"

}  // namespace onehop::python
