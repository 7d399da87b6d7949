// SPDX-License-Identifier: Apache-2.0
//
// ProgressThread: makes progress on an endpoint while no application thread does. Also serves the
// kernels' tickets on links whose streams use a proxy.
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

  // Idempotent. OH_ERR_NOT_VIABLE: ONEHOP_PROGRESS_THREAD=off forbids the thread.
  Status start();
  // As start(), but ignores a failure: calls of the application then make the progress.
  void serve() { (void)start().ok(); }
  // Stops the thread permanently.
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
