// SPDX-License-Identifier: Apache-2.0
#include "conformance/sides.h"
#include "sanitizers.h"

namespace conformance {

std::vector<LinkKind> process_kinds() {
  std::vector<LinkKind> kinds = {
      LinkKind{.name = "single_copy"},
      LinkKind{.name = "single_copy_shared_memory"}.with(MemoryKind::kShared),
      LinkKind{.name = "no_single_copy", .env = {{"ONEHOP_CMA", "off"}}},
      LinkKind{.name = "no_single_copy_shared_memory", .env = {{"ONEHOP_CMA", "off"}}}.with(
          MemoryKind::kShared),
      LinkKind{.name = "tiny_credit",
               .env = {{"ONEHOP_EAGER_CREDIT", "1024"}, {"ONEHOP_EAGER_MAX", "512"}}},
      LinkKind{.name = "no_segment",
               .env = {{"ONEHOP_SEGMENT", "off"}, {"ONEHOP_LOG", "error"}},
               .path = OH_PATH_SOCKET},
      LinkKind{.name = "ucx_tcp",
               .env = {{"ONEHOP_TRANSPORT", "ucx"}, {"UCX_TLS", "tcp"}, {"UCX_NET_DEVICES", "lo"}},
               .path = OH_PATH_UCX},
  };
  // For onehop it differs only in timing.
  if (!kSanitized) {
    kinds.push_back({.name = "ucx_shm",
                     .env = {{"ONEHOP_TRANSPORT", "ucx"},
                             {"UCX_TLS", "posix,cma,self"},
                             {"UCX_POSIX_ERROR_HANDLING", "y"}},
                     .path = OH_PATH_UCX});
  }
  return kinds;
}

std::vector<LinkKind> rma_kinds() {
  std::vector<LinkKind> kinds;
  for (LinkKind kind : process_kinds()) {
    if (kind.path != OH_PATH_UCX) continue;
    kind.name += "_rma";
    kind.env["ONEHOP_UCX_RMA"] = "on";
    kinds.push_back(kind);
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Shm, Conformance, ::testing::ValuesIn(process_kinds()), name_of);
INSTANTIATE_TEST_SUITE_P(Shm, OneSided, ::testing::ValuesIn(process_kinds()), name_of);
INSTANTIATE_TEST_SUITE_P(Rma, OneSided, ::testing::ValuesIn(rma_kinds()), name_of);
INSTANTIATE_TEST_SUITE_P(Shm, Messages, ::testing::ValuesIn(process_kinds()), name_of);

}  // namespace conformance
