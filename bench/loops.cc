// SPDX-License-Identifier: Apache-2.0
#include "loops.h"

namespace bench {

Outcome run(Wire& wire, const Spec& spec) { return run_by(wire, spec); }

}  // namespace bench
