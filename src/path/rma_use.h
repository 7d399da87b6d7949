// SPDX-License-Identifier: Apache-2.0
//
// Whether puts and gets over UCX go by its remote memory access, or as messages. The figures are in
// docs/transports/ucx.md.
//
// Threading: none needed.
#pragma once

#include <cstdint>
#include <string>

namespace oh {

enum class RmaUse : uint8_t { kOff, kAuto, kOn };

// What ONEHOP_UCX_RMA says.
inline RmaUse rma_use(const std::string& text) {
  return text == "off" ? RmaUse::kOff : text == "on" ? RmaUse::kOn : RmaUse::kAuto;
}

// Whether UCX is asked for it at all. Where the link is then not by such a card, UCX would emulate
// it, and only kOn uses that.
inline constexpr bool uses_rma(RmaUse use, bool rdma) {
  return use == RmaUse::kOn || (use == RmaUse::kAuto && rdma);
}

}  // namespace oh
