// SPDX-License-Identifier: Apache-2.0
//
// StatsPage: a file that tells `onehop top` what the links of one endpoint have moved and have in
// flight. A thread writes it four times a second, each time under another name that it then gets,
// so a reader finds a whole page, also of a process that is stopped or has been killed.
//
//   ONEHOP_SOCKET_DIR/onehop-top.<pid>.<endpoint>: JSON, mode 0600; python/onehop/cli/top.py reads
//   it
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

  // Writes the first page and starts the thread. Removes pages of this user that no process has
  // written for an hour.
  Status start();
  // Ends the thread and removes the page; idempotent.
  void stop();
  // The page as of now.
  std::string text() const;

 private:
  static void run(void* context);
  void loop();
  Status write() const;

  Endpoint& endpoint_;
  std::string path_;   // empty: not started
  std::string about_;  // what the text begins with
  Mutex mutex_;
  unsigned long thread_ OH_GUARDED_BY(mutex_) = 0;
  std::atomic<uint32_t> stop_{0};  // also the futex that the thread sleeps on
};

}  // namespace oh
