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
// Raises if the local memory, which Python gave as `object`, is of the host.
void check_on_device(nb::handle object, const Local& local);
// Enqueues by `call`, which returns a status; then the memory is the stream's.
template <typename Call>
void enqueue(std::unique_ptr<Held> held, Call call) {
  oh_status status;
  {
    WithoutGil release;
    status = call();
  }
  check(status);
  hold(std::move(held));
}

void bind_stream_batches(nb::class_<PyOnStream>& type);
void bind_stream_region_batches(nb::class_<PyOnStream>& type);

// The arguments in signatures.
#define OH_PYTHON_STREAM_ARGUMENTS(size)                                 \
  ", lane: typing.SupportsIndex = 0, timeout: float | None = ..., " size \
  ": onehop.buffers.Buffer | None = None"

}  // namespace onehop::python
