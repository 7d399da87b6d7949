// SPDX-License-Identifier: Apache-2.0
//
// Communicator as Python sees it, for the files that give it verbs.
//
// Threading: needs the GIL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transfer.h"

namespace onehop::python {

// A communicator and its links so far; looked up on each call, so without a call of the library.
struct PyCommunicator {
  std::shared_ptr<Context> context;
  std::vector<std::shared_ptr<Link>> links;

  // Of a rank, connected if need be. The caller holds it: reconnect() may put another in its place.
  std::shared_ptr<Link> link(int64_t rank, nb::handle timeout);
};

// A rank that a peer can have, from the argument `name`.
int64_t rank_of(nb::handle rank, const char* name);

// Our rank, for messages.
std::string own_rank(const PyCommunicator& self);

// Communicator.on and warmup.
void bind_streams(nb::module_& module, nb::class_<PyCommunicator>& communicator);

}  // namespace onehop::python
