// SPDX-License-Identifier: Apache-2.0
//
// Whether puts and gets over UCX use UCX RMA or travel as messages. docs/transports/ucx.md has the
// measurements.
//
// Threading: none needed.
#pragma once

#include <cstdint>
#include <string>

namespace oh {

enum class RmaUse : uint8_t { kOff, kAuto, kOn };

// Parses the value of ONEHOP_UCX_RMA.
inline RmaUse rma_use(const std::string& text) {
  return text == "off" ? RmaUse::kOff : text == "on" ? RmaUse::kOn : RmaUse::kAuto;
}

// Whether the UCX context is created with RMA. `rdma`: this machine has RDMA cards. On a link that
// does not use such a card UCX would emulate RMA; only kOn uses that.
inline constexpr bool uses_rma(RmaUse use, bool rdma) {
  return use == RmaUse::kOn || (use == RmaUse::kAuto && rdma);
}

}  // namespace oh
