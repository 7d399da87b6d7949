// SPDX-License-Identifier: Apache-2.0
//
// What puts, gets and batches share: how an operation begins, and its options.
//
// Threading: needs the GIL.
#pragma once

#include <memory>
#include <optional>

#include "bytes.h"
#include "endpoint.h"

namespace onehop::python {

// An operation that holds the local memory.
inline std::unique_ptr<Operation> begin(Link& link, nb::handle object, Access access) {
  orphans().sweep();
  auto operation = std::make_unique<Operation>();
  operation->context = link.context;
  operation->local.acquire(*link.context, object, access);
  return operation;
}

// What `after` stands for where several sides of one operation wait: the stream is that of the
// first that is on a device.
After after_all(const Locals& locals, nb::handle after);

// Raises unless both have the same length.
void check_sizes(const Local& local, const PyRemoteRegion& remote);

// Of atomic operations: a number, and a region of 8 bytes.
uint64_t word(nb::handle given, const char* name);
PyRemoteRegion& word_of(nb::handle region);

struct PutOptions {
  PutOptions(nb::handle notify, After after) {
    if (!notify.is_none()) bytes = from_bytes(notify);
    value = detail::with(kDefaultTimeout, bytes ? &*bytes : nullptr, after);
  }
  PutOptions(const PutOptions&) = delete;
  std::optional<Bytes> bytes;
  oh_put_options value;
};

// The request of an operation that was posted. Raises when it was not.
inline PyRequest started(std::unique_ptr<Operation> operation, oh_status status,
                         oh_request* request) {
  check(status);
  operation->request = Owned<Request>(Request(request));
  operation->try_release();
  return PyRequest(std::move(operation));
}

}  // namespace onehop::python
