// SPDX-License-Identifier: Apache-2.0
//
// The Python Communicator, for the files that implement its methods.
//
// Threading: needs the GIL.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "transfer.h"

namespace onehop::python {

// A communicator and its established links, cached so that a call needs no library lookup.
struct PyCommunicator {
  std::shared_ptr<Context> context;
  std::vector<std::shared_ptr<Link>> links;

  // Returns the link to a rank; connects if needed. The caller must hold it, because reconnect()
  // may replace it.
  std::shared_ptr<Link> link(int64_t rank, nb::handle timeout);
};

// Converts the argument `name` to the rank of a peer.
int64_t rank_of(nb::handle rank, const char* name);

// This process's rank, for texts.
std::string own_rank(const PyCommunicator& self);

// Communicator.on and warmup.
void bind_streams(nb::module_& module, nb::class_<PyCommunicator>& communicator);

}  // namespace onehop::python
