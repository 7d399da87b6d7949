// SPDX-License-Identifier: Apache-2.0
//
// StatsPage: publishes the traffic and the in-flight operations of one endpoint's links to `onehop
// top` in a file. A thread rewrites it four times a second and replaces it atomically by rename, so
// that a reader always finds a complete page, even if the process was stopped or killed.
//
//   ONEHOP_SOCKET_DIR/onehop-top.<pid>.<endpoint>: JSON, mode 0600; read by
//   python/onehop/cli/top.py
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "base/status.h"
#include "base/sync.h"

namespace oh {

class Endpoint;

class StatsPage {
 public:
  static constexpr const char* kPrefix = "onehop-top.";

  explicit StatsPage(Endpoint& endpoint) : endpoint_(endpoint) {}

  // Writes the first page and starts the thread. Removes this user's pages that have not been
  // updated for an hour.
  Status start();
  // Stops the thread and removes the page; idempotent.
  void stop();
  // Formats the current page.
  std::string text() const;

 private:
  static void run(void* context);
  void loop();
  Status write() const;

  Endpoint& endpoint_;
  std::string path_;   // empty: not started
  std::string about_;  // constant beginning of the text
  Mutex mutex_;
  unsigned long thread_ OH_GUARDED_BY(mutex_) = 0;
  std::atomic<uint32_t> stop_{0};  // also the futex that the thread sleeps on
};

}  // namespace oh
