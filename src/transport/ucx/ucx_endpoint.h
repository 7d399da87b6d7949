// SPDX-License-Identifier: Apache-2.0
//
// UcxEndpoint: UCX's endpoint of one link, from connect() to close(), and the reason if the link is
// broken. Any failure of UCX breaks the link: frames are numbered, so the peer would wait for ever
// for one that was not sent.
//
// Threading: guarded by the worker's lock. broken(), flush() and wait_for() take it; the caller of
// the other functions holds it.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>

#include "base/clock.h"
#include "transport/ucx/ucx_head.h"
#include "transport/ucx/ucx_worker.h"

namespace oh {

class UcxEndpoint {
 public:
  static constexpr unsigned kAmId = 0x6f;

  explicit UcxEndpoint(std::shared_ptr<UcxWorker> worker) : worker_(std::move(worker)) {}
  UcxEndpoint(const UcxEndpoint&) = delete;
  UcxEndpoint& operator=(const UcxEndpoint&) = delete;

  UcxWorker& worker() const { return *worker_; }
  const std::shared_ptr<UcxWorker>& shared_worker() const { return worker_; }

  // The functions up to send() are called with the worker's lock held.
  // Connects to the worker at `address`, which must outlive the endpoint.
  Status connect(const Bytes& address);
  // Force-closes the endpoint; UCX soon cancels its requests. Returns UCX's request to wait for, or
  // null.
  void* close();
  // Null before connect() and after close().
  ucx::Endpoint handle() const { return handle_; }
  bool is_usable() const { return handle_ && why_broken_.empty(); }
  bool is_broken() const { return !why_broken_.empty(); }
  const std::string& why_broken() const { return why_broken_; }
  void break_off(const std::string& why);
  // Notes that a message from the peer has arrived; see UcxWorker::close().
  void note_heard() { has_heard_ = true; }
  struct Sending {
    const void* header;
    size_t header_size;
    ByteView payload = {};
    bool asked = false;            // the receiver requested it (Cts): UCX may use a rendezvous
    void* registration = nullptr;  // UCX's handle of the payload's memory, if registered
  };
  // Sends an active message. Returns null (complete), a request, or an error code; an error has
  // broken the link.
  ucx::StatusPointer send(const Sending& what, void (*done)(void*, ucx::Code, void*),
                          void* context);

  // The functions below are called by any thread, without the lock.
  // OH_ERR_PEER_LOST with the reason once the link is broken.
  Status broken();
  // Waits until UCX has sent everything. False at the deadline, when the link is broken, or once
  // `there` returns false because the peer is gone, which UCX may not report.
  bool flush(Deadline deadline, const std::function<bool()>& there);
  // The same for one request of UCX, which it frees.
  bool wait_for(void* request, Deadline deadline, const std::function<bool()>& there);

 private:
  std::shared_ptr<UcxWorker> worker_;
  ucx::Endpoint handle_ = nullptr;
  bool has_heard_ = false;
  std::string why_broken_;
  std::atomic<bool> is_broken_{false};  // release, after why_broken_; pairs with broken()
};

}  // namespace oh
