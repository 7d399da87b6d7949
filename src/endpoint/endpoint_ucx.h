// SPDX-License-Identifier: Apache-2.0
//
// EndpointUcx: the UCX worker of one endpoint, created when the first link needs it, and the
// UcxWatch that polls it while no user thread does.
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

  // Creates the worker on first use. OH_ERR_NOT_VIABLE: UCX is not available; the text gives the
  // reason.
  Result<std::shared_ptr<UcxWorker>> worker();
  // Stops handling UCX events.
  void close();

  // Polls UCX. Returns true if anything happened.
  bool progress();
  // See UcxWatch::look_before_sleep().
  bool look_before_sleep();
  // Schedules progress on the watcher thread, unless another thread polls before then.
  void schedule_progress();
  // Statistics of the pool of staging buffers; all zero without a worker.
  PoolStats pipeline_stats() const;

 private:
  class Events;

  Endpoint& endpoint_;
  Mutex mutex_;
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  std::shared_ptr<UcxWatch> watch_ OH_GUARDED_BY(mutex_);
  // Lock-free copy of watch_, valid until the endpoint is destroyed.
  std::atomic<UcxWatch*> polled_watch_{nullptr};
};

}  // namespace oh
