// SPDX-License-Identifier: Apache-2.0
//
// Set-up: what an endpoint, a link and its first bytes cost, in time and in memory.
#pragma once

#include "side.h"

namespace bench {

struct SetupOutcome {
  Outcome endpoint;            // creating an endpoint
  Outcome connect;             // connecting it
  Outcome first;               // the first 8 bytes, until they are answered
  Outcome further;             // both, of an endpoint that has had a link
  double rss_per_peer = 0;     // bytes of side 0's process, shared pages in full
  double pss_per_peer = 0;     // the same, shared pages divided among those who map them
  double device_per_peer = 0;  // bytes of side 0's GPU
};

// Creates, connects and closes `spec.iterations` endpoints on side 0, makes and closes as many
// links of one, then keeps `spec.window` of another.
SetupOutcome setup(Side& side, const Spec& spec);

}  // namespace bench
