// SPDX-License-Identifier: Apache-2.0
//
// Links over a UCX with injected failures (tests/faulty_ucx).
#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <string>

#include "conformance/fake_driver.h"
#include "faulty_ucx/control.h"

namespace conformance {

using namespace std::chrono_literals;

struct Seam {
  decltype(&faulty_ucx_fail) fail;
  decltype(&faulty_ucx_struck) struck;
  decltype(&faulty_ucx_counts) counts;
  decltype(&faulty_ucx_calls) calls;
};
const Seam& seam();
void set_rules(const std::string& rules);
// Whether all UCX objects were released, including those that the watcher's thread releases.
::testing::AssertionResult nothing_is_open();

// Runs both sides in their own processes, with the faulty library between onehop and UCX.
void run_faulty(const std::map<std::string, std::string>& env, const Role& role);

// One endpoint per side with two links between them: the first is struck.
struct Links {
  explicit Links(Side& side) {
    if (side.number() == 1) side.tell(endpoint.address());
    const onehop::Bytes address = side.number() == 1 ? onehop::Bytes() : side.hear();
    for (auto& peer : peers) {
      peer = std::make_unique<onehop::Peer>(side.number() == 1 ? endpoint.accept(20s)
                                                               : endpoint.connect(address, 20s));
      side.sync();
    }
  }
  onehop::Endpoint endpoint;
  std::unique_ptr<onehop::Peer> peers[2];
};

// The outcome of a call.
struct End {
  oh_status status = OH_OK;
  std::string text;
};
template <typename Call>
inline End end_of(Call call) {
  try {
    call();
  } catch (const onehop::Error& failure) {
    return {failure.status(), failure.what()};
  }
  return {};
}

}  // namespace conformance
