// SPDX-License-Identifier: Apache-2.0
//
// Tests of a single race each, ordered by a fault point: the test's work runs in the thread that
// passes the point.
//
// Threading: one test at a time.
#pragma once

#include <functional>
#include <string_view>
#include <utility>

#include "base/fault.h"

namespace unit {

// Base class of such a test.
class Race {
 protected:
  ~Race() { oh::g_fault_hook.store(nullptr); }

  // Runs `work` once, when a thread passes the point.
  static void at(const char* point, std::function<void()> work) {
    point_ = point;
    work_ = std::move(work);
    oh::g_fault_hook.store([](const char* passed) {
      if (!work_ || std::string_view(passed) != point_) return;
      std::exchange(work_, nullptr)();
    });
  }
  static bool came_by() { return !work_; }

 private:
  static inline std::string_view point_;
  static inline std::function<void()> work_;
};

}  // namespace unit
