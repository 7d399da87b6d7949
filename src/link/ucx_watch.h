// SPDX-License-Identifier: Apache-2.0
//
// UcxWatch: the watcher thread polls UCX only while no user thread does. While one does, the
// watcher stays away, and checks later whether that thread still polls.
//
//   WATCHING ──▶ an event: look ──▶ no other thread polls: arm ──▶ WATCHING
//                              └──▶ one does: AWAY ──▶ 1 ms later, or before it sleeps: arm
//
// Threading: any thread.
#pragma once

#include <functional>
#include <memory>

#include "control/node.h"
#include "transport/ucx/ucx_worker.h"

namespace oh {

class UcxWatch final : public Watcher::Handler, public std::enable_shared_from_this<UcxWatch> {
 public:
  // `serve` handles what has arrived for the peers; true when something happened.
  UcxWatch(std::shared_ptr<Node> node, std::shared_ptr<UcxWorker> worker,
           std::function<bool()> serve)
      : node_(std::move(node)), worker_(std::move(worker)), serve_(std::move(serve)) {}

  Status start();
  // Stops handling events. Idempotent.
  void stop();
  UcxWorker& worker() { return *worker_; }
  std::shared_ptr<UcxWorker> shared_worker() const { return worker_; }

  // Arms the event before a thread sleeps. True: something has arrived already, so the thread must
  // not sleep.
  bool look_before_sleep();

  // Schedules a poll: another thread has consumed what the event was for, or has left work with
  // UCX, and may not poll again.
  void look_soon();

  void on_ready(uint32_t events) override;

 private:
  void look();
  // Schedules a poll on the watcher, unless one is scheduled: at most one is at any time.
  void look_at(int64_t when);

  std::shared_ptr<Node> node_;
  std::shared_ptr<UcxWorker> worker_;
  std::function<bool()> serve_;
  std::atomic<bool> watching_{false};
  std::atomic<bool> posted_{false};  // a poll is scheduled
  std::atomic<bool> stopped_{false};
  uint32_t seen_rounds_ = 0;  // on the watcher's thread
};

}  // namespace oh
