// SPDX-License-Identifier: Apache-2.0
//
// The life of an endpoint on a GPU, step by step, for tests with driver failures: the subject,
// whose driver fails, and its partner, which follows whatever the outcome of a step. The subject
// checks bytes without driver calls, since the next call may be the one that fails.
//
// Threading: one thread on each side; the partner's endpoint has a progress thread.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "conformance/fake_driver.h"

namespace conformance {

// A step that failed.
struct StepFailure {
  std::string step;
  oh_status status;
  std::string text;
};

class Subject {
 public:
  explicit Subject(Side& side);
  ~Subject();

  // Creates the endpoint and the link; retries whatever fails.
  void begin();
  // Exchanges messages in both directions, with events, and accesses regions of both sides.
  void exchange();
  void close();
  void link_again() { link(); }
  // Returns the failures since the last call.
  std::vector<StepFailure> failures() { return std::exchange(failures_, {}); }

 private:
  // Returns whether the step succeeded.
  bool step(const std::string& name, const std::function<oh_status()>& call);
  void message(const std::string& name, bool sends, Buffer& buffer, const onehop::After& after);
  void serve_region();
  void use_region();
  void use_region_in_stream(oh_remote_region* remote);
  bool link();
  void put_bytes(Buffer& buffer, uint64_t seed);
  bool has_bytes(Buffer& buffer, uint64_t seed);

  Side& side_;
  Buffer small_;
  Buffer large_;
  void* stream_;
  std::unique_ptr<oh_endpoint, void (*)(oh_endpoint*)> endpoint_{nullptr, oh_endpoint_destroy};
  std::unique_ptr<oh_peer, void (*)(oh_peer*)> peer_{nullptr, oh_peer_release};
  std::vector<StepFailure> failures_;
  uint64_t seed_ = 100;
};

// Runs the partner of a Subject until the Subject is destroyed.
void go_along(Side& side);

}  // namespace conformance
