// SPDX-License-Identifier: Apache-2.0
#include "operation.h"

namespace onehop::python {

bool Operation::try_release() {
  if (oh_request_buffer_released(handle()) == 0) return false;
  local.release();
  locals.reset();
  return true;
}

}  // namespace onehop::python
