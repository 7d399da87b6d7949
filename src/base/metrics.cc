// SPDX-License-Identifier: Apache-2.0
#include "base/metrics.h"

namespace oh {

#define OH_STATUS_FITS(name, value, scope, text) static_assert((value) > -64);
OH_STATUS_LIST(OH_STATUS_FITS)
#undef OH_STATUS_FITS

void Metrics::reset() {
  for (auto* times : {&transfer_time, &post_time}) {
    for (ByPath& paths : *times) {
      for (TimeHistogram& histogram : paths) histogram.reset();
    }
  }
  for (BlockHistogram& histogram : batch_blocks) histogram.reset();
  for (Counter& counter : losses) counter.reset();
  for (Counter& counter : fallbacks) counter.reset();
  for (Counter& counter : errors_) counter.reset();
  registered_bytes.reset();
  imported_bytes.reset();
}

}  // namespace oh
