// SPDX-License-Identifier: Apache-2.0
//
// Operation: a request and the local memory that must outlive it. If it is dropped while the buffer
// may still be accessed, it becomes an orphan.
//
// Threading: needs the GIL.
#pragma once

#include <memory>

#include "context.h"
#include "local.h"
#include "orphans.h"

namespace onehop::python {

struct Operation final : Orphan {
  // Destroyed in reverse order: the request is released first.
  std::shared_ptr<Context> context;
  Local local;
  std::shared_ptr<Locals> locals;  // of an operation over several pieces
  Owned<Request> request;

  oh_request* handle() const { return request->get(); }
  bool try_release() override;
};

}  // namespace onehop::python
