// SPDX-License-Identifier: Apache-2.0
//
// EndpointUcx: the UCX worker of one endpoint, made when the first link needs it, and the watch
// that polls it while no user thread does.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <memory>

#include "link/ucx_watch.h"

namespace oh {

class Endpoint;

class EndpointUcx {
 public:
  explicit EndpointUcx(Endpoint& endpoint) : endpoint_(endpoint) {}

  // OH_ERR_NOT_VIABLE: no UCX here, and why.
  Result<std::shared_ptr<UcxWorker>> worker();
  // Handles no event any more.
  void close();

  // True when something happened.
  bool progress();
  // As of UcxWatch.
  bool look_before_sleep();
  // Schedules progress on the watcher thread, unless another thread has made it by then.
  void schedule_progress();
  // Of the pool that transfers use; all zero where there is none.
  PoolStats pipeline_stats() const;

 private:
  class Events;

  Endpoint& endpoint_;
  Mutex mutex_;
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  std::shared_ptr<UcxWatch> watch_ OH_GUARDED_BY(mutex_);
  std::atomic<UcxWatch*> polled_watch_{nullptr};  // the same, until the endpoint is destroyed
};

}  // namespace oh
