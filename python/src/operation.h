// SPDX-License-Identifier: Apache-2.0
//
// Operation: a request with all that must outlive it: the local memory's hold. One that is
// dropped while its buffer may still be touched goes to the orphans until it is free.
//
// Threading: needs the GIL.
#pragma once

#include <memory>

#include "context.h"
#include "local.h"

namespace onehop::python {

struct Operation {
  // In the order of destruction reversed: the request lets go first.
  std::shared_ptr<Context> context;
  Local local;
  std::shared_ptr<Locals> locals;  // of one over several
  Owned<Request> request;

  oh_request* handle() const { return request->get(); }
  // Releases the buffer if it is no longer accessed.
  bool try_release();
};

// Keeps an operation until its buffer is released.
void adopt_orphan(std::unique_ptr<Operation> operation);
// Lets some of the orphans go that have become free. Cheap when there are none.
void sweep_orphans();
// The same for all of them. Returns how many are left.
size_t sweep_all_orphans();

}  // namespace onehop::python
