// SPDX-License-Identifier: Apache-2.0
//
// What an endpoint on a GPU does in its life, step by step, for tests in which the driver fails:
// the subject, whose driver does, and its partner, who goes along whatever becomes of a step. The
// subject looks at bytes without calling the driver, whose next call may be the one that fails.
//
// Threading: one thread at each side; the partner's endpoint has a progress thread.
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

  // Until there is an endpoint and a link: what fails is tried again.
  void begin();
  // Messages both ways, with events, regions of both sides.
  void exchange();
  void close();
  void link_again() { link(); }
  // What has failed since the last call.
  std::vector<StepFailure> failures() { return std::exchange(failures_, {}); }

 private:
  // Whether it went well.
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

// The partner of a Subject, until that is destroyed.
void go_along(Side& side);

}  // namespace conformance
