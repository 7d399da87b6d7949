// SPDX-License-Identifier: Apache-2.0
#include "loops.h"

namespace bench {

Outcome latency(Wire& wire, const Spec& spec) { return latency_by(wire, spec); }
Outcome bandwidth(Wire& wire, const Spec& spec) { return bandwidth_by(wire, spec); }

}  // namespace bench
