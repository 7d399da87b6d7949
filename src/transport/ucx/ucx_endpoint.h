// SPDX-License-Identifier: Apache-2.0
//
// UcxEndpoint: UCX's endpoint of one link, from connect() to close(), and why the link is broken
// where UCX has failed at it. Frames are numbered, so the peer waits for ever for one that was not
// sent: any failure breaks the link.
//
// Threading: guarded by the worker's lock, which broken(), flush() and wait_for() take by
// themselves; connect() and close() are called with it held.
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

  // With the worker's lock held.
  // `address` must stay.
  Status connect(const Bytes& address);
  // Ends what UCX has in flight, soon. The request of UCX to wait for, or null.
  void* close();
  // Null: not connected, or closed.
  ucx::Endpoint handle() const { return handle_; }
  bool is_usable() const { return handle_ && why_broken_.empty(); }
  bool is_broken() const { return !why_broken_.empty(); }
  const std::string& why_broken() const { return why_broken_; }
  void break_off(const std::string& why);
  // A message of the peer has arrived.
  void note_heard() { has_heard_ = true; }
  struct Sending {
    const void* header;
    size_t header_size;
    ByteView payload = {};
    bool asked = false;            // its receiver has asked for it
    void* registration = nullptr;  // of the payload's memory with UCX
  };
  // Nothing, a request, or a code, with which the link is broken.
  ucx::StatusPointer send(const Sending& what, void (*done)(void*, ucx::Code, void*),
                          void* context);

  // Any thread, without the lock.
  // Not ok: UCX has given the link up.
  Status broken();
  // Until all that was sent has left. False at the deadline, or once `there` says that the peer
  // has gone, of which UCX may say nothing.
  bool flush(Deadline deadline, const std::function<bool()>& there);
  // The same for a request of UCX, which is freed.
  bool wait_for(void* request, Deadline deadline, const std::function<bool()>& there);

 private:
  std::shared_ptr<UcxWorker> worker_;
  ucx::Endpoint handle_ = nullptr;
  bool has_heard_ = false;
  std::string why_broken_;
  std::atomic<bool> is_broken_{false};  // release: why_broken_; pairs with broken()
};

}  // namespace oh
