// SPDX-License-Identifier: Apache-2.0
//
// Shared parts of puts, gets and batches: the start of an operation, and its options.
//
// Threading: needs the GIL.
#pragma once

#include <memory>
#include <optional>

#include "bytes.h"
#include "endpoint.h"

namespace onehop::python {

// Creates an operation that holds the local memory.
inline std::unique_ptr<Operation> begin(Link& link, nb::handle object, Access access) {
  orphans().sweep();
  auto operation = std::make_unique<Operation>();
  operation->context = link.context;
  operation->local.acquire(*link.context, object, access);
  return operation;
}

// Converts `after` for an operation over several pieces: the current stream is that of the first
// piece in device memory.
After after_all(const Locals& locals, nb::handle after);

// Raises unless both have the same size.
void check_sizes(const Local& local, const PyRemoteRegion& remote);

// Arguments of atomic operations: a number, and a region of 8 bytes.
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

// Returns the request of a posted operation. Raises if posting failed.
inline PyRequest started(std::unique_ptr<Operation> operation, oh_status status,
                         oh_request* request) {
  check(status);
  operation->request = Owned<Request>(Request(request));
  operation->try_release();
  return PyRequest(std::move(operation));
}

}  // namespace onehop::python
