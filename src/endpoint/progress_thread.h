// SPDX-License-Identifier: Apache-2.0
//
// ProgressThread: the thread that makes an endpoint's progress when no thread of the application
// does. It also serves the tickets of kernels, for links whose streams go by proxy.
//
// Threading: any thread.
#pragma once

#include <atomic>

#include "base/status.h"
#include "base/sync.h"

namespace oh {

class Endpoint;

class ProgressThread {
 public:
  explicit ProgressThread(Endpoint& endpoint) : endpoint_(endpoint) {}

  // Idempotent. OH_ERR_NOT_VIABLE: the configuration forbids it.
  Status start();
  // The same where calls of the application make the progress otherwise.
  void serve() { (void)start().ok(); }
  // Stops the thread for good.
  void stop();

 private:
  static void run(void* context);
  void loop();
  bool serve_tickets();

  Endpoint& endpoint_;
  Mutex mutex_;
  unsigned long thread_ OH_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> stop_{false};
};

}  // namespace oh
