// SPDX-License-Identifier: Apache-2.0
//
// Held: what an operation of a stream uses. It is kept until the stream is through with it: asked
// at the next stream call, and when a link or an endpoint is closed. A torch tensor is given back
// at once, marked for the stream (record_stream). Of operations that are captured nothing is kept.
//
// Threading: needs the GIL.
#pragma once

#include <memory>
#include <vector>

#include "transfer.h"

namespace onehop::python {

// A stream, as Python gave it.
struct GivenStream {
  void* handle = nullptr;
  nb::object object;
};

struct Held {
  std::shared_ptr<Link> link;
  Local local;
  Local size;                      // the word with a message's size, if any
  std::shared_ptr<Locals> locals;  // of a batch between many
  std::vector<std::shared_ptr<Owned<RemoteRegion>>> remotes;
  GivenStream stream;
};

// Keeps it: its operation is in the stream, or in this thread's group.
void hold(std::unique_ptr<Held> held);

// What an open group of this thread's uses is kept until its end, and as above from there.
void begin_group();
void end_group();
// How many groups of this thread are open.
int group_depth();

// Lets some of what streams are through with go. Cheap when there is nothing.
void sweep_held();
// The same for all of it. Returns how much is left.
size_t sweep_all_held();

}  // namespace onehop::python
