// SPDX-License-Identifier: Apache-2.0
//
// Held: the objects that a stream operation uses. They are kept until the stream has executed it,
// which is checked at the next stream call and when a link or an endpoint is closed. A torch tensor
// of a message is released at once, after record_stream. Captured operations keep nothing.
//
// Threading: needs the GIL.
#pragma once

#include <memory>
#include <vector>

#include "transfer.h"

namespace onehop::python {

// A stream, and the Python object it came from.
struct GivenStream {
  void* handle = nullptr;
  nb::object object;
};

struct Held {
  std::shared_ptr<Link> link;
  Local local;
  Local size;                      // the device word of a message's size, if any
  std::shared_ptr<Locals> locals;  // of a batch over many pieces
  std::vector<std::shared_ptr<Owned<RemoteRegion>>> remotes;
  GivenStream stream;
};

// Keeps `held`, whose operation is enqueued or belongs to this thread's open group.
void hold(std::unique_ptr<Held> held);

// What the operations of this thread's open group use is held until the group ends, and from then
// on as above.
void begin_group();
void end_group();
// Nesting depth of this thread's groups.
int group_depth();

// Releases some of what streams have passed. Cheap if nothing is held.
void sweep_held();
// Releases all that streams have passed. Returns the number of items left.
size_t sweep_all_held();

}  // namespace onehop::python
