// SPDX-License-Identifier: Apache-2.0
//
// Settings that UCX takes from the environment only.
//
// Threading: any thread, one at a time; others wait.
#pragma once

#include <mutex>

namespace oh::ucx {

// While it lives, the environment has a setting more. Other threads that look meanwhile read the
// former list or this one; both stay. setenv() cannot do that.
class EnvironmentWith {
 public:
  // "UCX_NAME=value", which stays; a name that is not set.
  explicit EnvironmentWith(char* setting);
  ~EnvironmentWith();
  EnvironmentWith(const EnvironmentWith&) = delete;
  EnvironmentWith& operator=(const EnvironmentWith&) = delete;

 private:
  std::unique_lock<std::mutex> lock_;
  char** former_;
  char** ours_;
};

}  // namespace oh::ucx
