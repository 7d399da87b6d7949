// SPDX-License-Identifier: Apache-2.0
//
// onehop for C++17 and newer: RAII and exceptions over the C API, header-only.
//
// Purpose: the same objects and verbs as onehop.h. The C headers document each call. Threading: as
// there. Ownership: every object owns its handle and releases it on destruction; objects are
// movable. The caller owns buffers, and must keep them until the operation has ended
// (Request::buffer_released). Errors: calls throw onehop::Error or a class derived from it;
// destructors never throw.
#ifndef ONEHOP_ONEHOP_HPP_
#define ONEHOP_ONEHOP_HPP_

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "onehop/onehop.h"
#include "onehop/onehop_error.hpp"
#include "onehop/onehop_options.hpp"
#include "onehop/onehop_region.hpp"

namespace onehop {

using Message = oh_message;

// One operation in flight.
class Request {
 public:
  explicit Request(oh_request* handle) : handle_(handle) {}
  bool test() {
    oh_status status = oh_request_test(handle_.get());
    if (status == OH_IN_PROGRESS) return false;
    check(status);
    return true;
  }
  // The deadline ends the operation: TimeoutError, or OperationError with OH_ERR_IN_DOUBT.
  Message wait(Timeout timeout = kDefaultTimeout) {
    check(oh_request_wait(handle_.get(), timeout.count()));
    return message();
  }
  // Returns false if it is too late.
  bool cancel() {
    oh_status status = oh_request_cancel(handle_.get());
    if (status == OH_AGAIN) return false;
    check(status);
    return true;
  }
  // Work enqueued on the stream from now on runs after the operation has ended, even on error.
  void stream_wait(void* stream) { check(oh_request_stream_wait(handle_.get(), stream)); }
  // The stream waits until the operation has ended; the host waits only until the copy is enqueued
  // on a copy engine. See oh_request_wait_enqueued.
  void wait_enqueued(void* stream, Timeout timeout = kDefaultTimeout) {
    check(oh_request_wait_enqueued(handle_.get(), stream, timeout.count()));
  }
  bool buffer_released() const { return oh_request_buffer_released(handle_.get()) != 0; }
  Message message() const {
    auto message = detail::sized<Message>();
    check(oh_request_message(handle_.get(), &message));
    return message;
  }
  oh_request* get() const { return handle_.get(); }

 private:
  detail::Handle<oh_request, oh_request_release> handle_;
};

class OnStream;
class PreparedBatch;

// A connection to one remote endpoint. Sizes, offsets and capacities are in bytes.
class Peer {
 public:
  explicit Peer(oh_peer* handle) : handle_(handle) {}

  void send(const void* data, size_t size, uint64_t tag = 0, Timeout timeout = kDefaultTimeout,
            After after = {}) {
    auto options = detail::with(timeout, after);
    check(oh_peer_send(get(), data, size, tag, &options));
  }
  Message recv(void* data, size_t capacity, uint64_t tag = 0, Timeout timeout = kDefaultTimeout,
               After after = {}) {
    auto options = detail::with(timeout, after);
    auto message = detail::sized<Message>();
    check(oh_peer_recv(get(), data, capacity, tag, &options, &message));
    return message;
  }
  // Returns nothing if too many sends wait for their receives: make progress and call again.
  std::optional<Request> try_isend(const void* data, size_t size, uint64_t tag = 0,
                                   After after = {}) {
    auto options = detail::with(kDefaultTimeout, after);
    oh_request* request = nullptr;
    oh_status status = oh_peer_isend(get(), data, size, tag, &options, &request);
    if (status == OH_AGAIN) return std::nullopt;
    check(status);
    return Request(request);
  }
  Request isend(const void* data, size_t size, uint64_t tag = 0, After after = {}) {
    auto options = detail::with(kDefaultTimeout, after);
    oh_request* request = nullptr;
    check(oh_peer_isend(get(), data, size, tag, &options, &request));
    return Request(request);
  }
  Request irecv(void* data, size_t capacity, uint64_t tag = 0, After after = {}) {
    auto options = detail::with(kDefaultTimeout, after);
    oh_request* request = nullptr;
    check(oh_peer_irecv(get(), data, capacity, tag, &options, &request));
    return Request(request);
  }

  RemoteRegion attach(const Bytes& descriptor, Timeout timeout = kDefaultTimeout) {
    oh_remote_region* remote = nullptr;
    check(oh_peer_attach(get(), descriptor.data(), descriptor.size(), timeout.count(), &remote));
    return RemoteRegion(remote);
  }
  Request put(const void* data, const RemoteRegion& remote, size_t offset, size_t size,
              const Bytes* notify = nullptr, After after = {}) {
    auto options = detail::with(kDefaultTimeout, notify, after);
    oh_request* request = nullptr;
    check(oh_peer_put(get(), data, remote.get(), offset, size, &options, &request));
    return Request(request);
  }
  Request get(void* data, const RemoteRegion& remote, size_t offset, size_t size,
              After after = {}) {
    return get(data, remote, offset, size, nullptr, after);
  }
  Request get(void* data, const RemoteRegion& remote, size_t offset, size_t size,
              const Bytes* notify, After after = {}) {
    auto options = detail::with(kDefaultTimeout, notify, after);
    oh_request* request = nullptr;
    check(oh_peer_get(get(), data, remote.get(), offset, size, &options, &request));
    return Request(request);
  }
  // Many blocks in one call, and prepared batches: see onehop_batch.hpp.
  Request put_batch(const RemoteRegion& remote, oh_batch batch, const Bytes* notify = nullptr,
                    After after = {});
  Request get_batch(const RemoteRegion& remote, oh_batch batch, After after = {});
  Request get_batch(const RemoteRegion& remote, oh_batch batch, const Bytes* notify,
                    After after = {});
  Request scatter(const RemoteRegion& remote, oh_batch batch, const Bytes* notify = nullptr,
                  After after = {});
  Request gather(const RemoteRegion& remote, oh_batch batch, After after = {});
  Request gather(const RemoteRegion& remote, oh_batch batch, const Bytes* notify, After after = {});
  PreparedBatch prepare_put(const RemoteRegion& remote, oh_batch batch);
  PreparedBatch prepare_get(const RemoteRegion& remote, oh_batch batch);
  // The same between many pieces of local memory and many regions.
  Request put_regions(oh_region_batch batch, const Bytes* notify = nullptr, After after = {});
  Request get_regions(oh_region_batch batch, const Bytes* notify = nullptr, After after = {});
  PreparedBatch prepare_put_regions(oh_region_batch batch);
  PreparedBatch prepare_get_regions(oh_region_batch batch);
  // Batches as messages.
  void send_batch(oh_blocks blocks, uint64_t tag = 0, Timeout timeout = kDefaultTimeout,
                  After after = {});
  Message recv_batch(oh_blocks blocks, uint64_t tag = 0, Timeout timeout = kDefaultTimeout,
                     After after = {});
  Request irecv_batch(oh_blocks blocks, uint64_t tag = 0, After after = {});
  // The next message without a posted receive, and requests that end once something can be taken:
  // see onehop_wait.hpp.
  Message probe(uint64_t tag = 0, Timeout timeout = kDefaultTimeout);
  Request message_ready(uint64_t tag = 0);
  Request signal_ready(uint32_t slot, uint64_t count = 1);
  void notify(const Bytes& bytes, Timeout timeout = kDefaultTimeout) {
    auto options = detail::with(timeout);
    check(oh_peer_notify(get(), bytes.data(), bytes.size(), &options));
  }
  // Returns the previous value: see oh_peer_fetch_add.
  uint64_t fetch_add(const RemoteRegion& remote, size_t offset, uint64_t value,
                     Timeout timeout = kDefaultTimeout) {
    uint64_t before = 0;
    check(oh_peer_fetch_add(get(), remote.get(), offset, value, timeout.count(), &before));
    return before;
  }
  uint64_t compare_swap(const RemoteRegion& remote, size_t offset, uint64_t expected,
                        uint64_t value, Timeout timeout = kDefaultTimeout) {
    uint64_t before = 0;
    check(oh_peer_compare_swap(get(), remote.get(), offset, expected, value, timeout.count(),
                               &before));
    return before;
  }
  void signal(uint32_t slot, uint64_t count = 1) { check(oh_peer_signal(get(), slot, count)); }
  void wait_signal(uint32_t slot, uint64_t count = 1, Timeout timeout = kDefaultTimeout) {
    check(oh_peer_wait_signal(get(), slot, count, timeout.count()));
  }

  // Stream operations, and lanes for kernels: see onehop_stream.hpp.
  OnStream on(void* stream) const;
  void warmup(Timeout timeout = kDefaultTimeout);
  oh_lane_handle device_handle(uint32_t lane) const;
  oh_lane_target lane_target(void* data, size_t size) const;
  void reset_lane(uint32_t lane, Timeout timeout = kDefaultTimeout);
  oh_stream_info stream_info() const;

  oh_peer_info info() const {
    auto info = detail::sized<oh_peer_info>();
    check(oh_peer_get_info(get(), &info));
    return info;
  }
  oh_peer_stats stats() const {
    auto stats = detail::sized<oh_peer_stats>();
    check(oh_peer_get_stats(get(), &stats));
    return stats;
  }
  // The last 1,024 operations that ended on this link, one line each.
  std::string flight_record() const {
    Bytes text = detail::fill(64 * 1024, [&](void* out, size_t* size) {
      return oh_peer_flight_record(get(), static_cast<char*>(out), size);
    });
    return std::string(text.begin(), text.end() - 1);
  }
  // Throws the last error of an operation that had already succeeded at this side.
  void check_async_error() { check(oh_peer_async_error(get())); }
  void close() { check(oh_peer_close(get())); }
  oh_peer* get() const { return handle_.get(); }

 private:
  detail::Handle<oh_peer, oh_peer_release> handle_;
};

}  // namespace onehop

#include "onehop/onehop_batch.hpp"
#include "onehop/onehop_endpoint.hpp"
#include "onehop/onehop_stream.hpp"
#include "onehop/onehop_wait.hpp"

#endif  // ONEHOP_ONEHOP_HPP_
