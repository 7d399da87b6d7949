// SPDX-License-Identifier: Apache-2.0
//
// UcxWatch: lets the watcher's thread move UCX on when something comes and nobody waits. While
// somebody looks by himself it keeps away, and asks a while later whether he still does.
//
//   WATCHING ──▶ an event: look ──▶ nobody else looks: arm ──▶ WATCHING
//                              └──▶ somebody does: AWAY ──▶ 1 ms later, or before he sleeps: arm
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
  // `serve` looks at what has come for the peers; true when something happened.
  UcxWatch(std::shared_ptr<Node> node, std::shared_ptr<UcxWorker> worker,
           std::function<bool()> serve)
      : node_(std::move(node)), worker_(std::move(worker)), serve_(std::move(serve)) {}

  Status start();
  // No event is looked at any more. Idempotent.
  void stop();
  UcxWorker& worker() { return *worker_; }
  std::shared_ptr<UcxWorker> shared_worker() const { return worker_; }

  // From now on events are watched for. True: something is there already.
  bool look_before_sleep();

  // Somebody has taken what the event was for, or has left something to do, and may look no more.
  void look_soon();

  void on_ready(uint32_t events) override;

 private:
  void look();
  void look_at(int64_t when);

  std::shared_ptr<Node> node_;
  std::shared_ptr<UcxWorker> worker_;
  std::function<bool()> serve_;
  std::atomic<bool> watching_{false};
  std::atomic<bool> stopped_{false};
  uint32_t seen_rounds_ = 0;  // on the watcher's thread
};

}  // namespace oh
