// SPDX-License-Identifier: Apache-2.0
//
// Operation: a request with all that must outlive it: the local memory's hold. One that is
// dropped while its buffer may still be touched becomes an orphan.
//
// Threading: needs the GIL.
#pragma once

#include <memory>

#include "context.h"
#include "local.h"
#include "orphans.h"

namespace onehop::python {

struct Operation final : Orphan {
  // In the order of destruction reversed: the request lets go first.
  std::shared_ptr<Context> context;
  Local local;
  std::shared_ptr<Locals> locals;  // of one over several
  Owned<Request> request;

  oh_request* handle() const { return request->get(); }
  bool try_release() override;
};

}  // namespace onehop::python
