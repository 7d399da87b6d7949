// SPDX-License-Identifier: Apache-2.0
//
// Settings that UCX takes from the environment only.
//
// Threading: any thread, one at a time; others wait.
#pragma once

#include <mutex>

namespace oh::ucx {

// Adds a setting to the environment during its lifetime. Other threads that read the environment
// meanwhile see the previous list or the extended one; both lists stay valid. setenv() cannot
// guarantee that.
class EnvironmentWith {
 public:
  // `setting`: "UCX_NAME=value", which must stay valid for ever. The name must not be set yet.
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
