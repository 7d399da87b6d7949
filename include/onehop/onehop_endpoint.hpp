// SPDX-License-Identifier: Apache-2.0
//
// Endpoint, Communicator and shared memory of onehop.hpp. Include onehop.hpp.
#ifndef ONEHOP_ONEHOP_ENDPOINT_HPP_
#define ONEHOP_ONEHOP_ENDPOINT_HPP_

#include "onehop/onehop.hpp"

namespace onehop {

// The functions of an endpoint, also of a communicator's. Does not own the handle.
class EndpointView {
 public:
  explicit EndpointView(oh_endpoint* handle) : view_(handle) {}

  Bytes address() const {
    return detail::fill(
        1024, [&](void* out, size_t* size) { return oh_endpoint_address(get(), out, size); });
  }
  // The CUDA ordinal of its GPU; -1: for host memory.
  int device() const {
    int32_t ordinal = -1;
    check(oh_endpoint_device(get(), &ordinal));
    return ordinal;
  }
  Peer connect(const Bytes& address, Timeout timeout = kDefaultTimeout) {
    oh_peer* peer = nullptr;
    check(oh_endpoint_connect(get(), address.data(), address.size(), timeout.count(), &peer));
    return Peer(peer);
  }
  Peer accept(Timeout timeout = kDefaultTimeout) {
    oh_peer* peer = nullptr;
    check(oh_endpoint_accept(get(), timeout.count(), &peer));
    return Peer(peer);
  }
  void progress() { check(oh_endpoint_progress(get())); }
  // Withdraws device memory that peers have mapped, so that a free takes effect at once.
  void trim() { check(oh_endpoint_trim(get())); }
  oh_pool_stats pool(oh_pool which) const {
    auto stats = detail::sized<oh_pool_stats>();
    check(oh_endpoint_get_pool(get(), which, &stats));
    return stats;
  }

  // Receives the first matching message of any peer.
  Message recv(void* data, size_t capacity, uint64_t tag = 0, Timeout timeout = kDefaultTimeout,
               After after = {}) {
    auto options = detail::with(timeout, after);
    auto message = detail::sized<Message>();
    check(oh_endpoint_recv(get(), data, capacity, tag, &options, &message));
    return message;
  }
  Request irecv(void* data, size_t capacity, uint64_t tag = 0, After after = {}) {
    auto options = detail::with(kDefaultTimeout, after);
    oh_request* request = nullptr;
    check(oh_endpoint_irecv(get(), data, capacity, tag, &options, &request));
    return Request(request);
  }

  Region register_memory(void* data, size_t size) {
    oh_region* region = nullptr;
    check(oh_region_register(get(), data, size, &region));
    return Region(region);
  }
  // Peers may only read it. See oh_region_register_read_only.
  Region register_read_only(const void* data, size_t size) {
    oh_region* region = nullptr;
    check(oh_region_register_read_only(get(), data, size, &region));
    return Region(region);
  }
  // Takes the oldest notification, if one has arrived.
  std::optional<std::pair<Message, Bytes>> notification() {
    return notification_by([&](void* data, size_t* size, Message* from) {
      return oh_endpoint_notification(get(), data, size, from);
    });
  }
  // Waits for the next notification. Throws TimeoutError at the deadline.
  std::pair<Message, Bytes> wait_notification(Timeout timeout = kDefaultTimeout) {
    return *notification_by([&](void* data, size_t* size, Message* from) {
      return oh_endpoint_wait_notification(get(), data, size, from, timeout.count());
    });
  }
  // The next message from any peer without a posted receive; it is not taken. See wait.h.
  Message probe(uint64_t tag = 0, Timeout timeout = kDefaultTimeout) {
    auto message = detail::sized<Message>();
    check(oh_endpoint_probe(get(), tag, timeout.count(), &message));
    return message;
  }
  // Requests that end once something can be taken.
  Request accept_ready() {
    oh_request* request = nullptr;
    check(oh_endpoint_accept_ready(get(), &request));
    return Request(request);
  }
  Request notification_ready() {
    oh_request* request = nullptr;
    check(oh_endpoint_notification_ready(get(), &request));
    return Request(request);
  }
  oh_endpoint* get() const { return view_; }

 private:
  template <typename Take>
  std::optional<std::pair<Message, Bytes>> notification_by(Take take) {
    auto from = detail::sized<Message>();
    Bytes bytes(2048);
    size_t size = bytes.size();
    oh_status status = take(bytes.data(), &size, &from);
    // A longer notification stays queued. Another thread may take it before the next call.
    while (status == OH_ERR_RANGE && size > bytes.size()) {
      bytes.resize(size);
      status = take(bytes.data(), &size, &from);
    }
    if (status == OH_AGAIN) return std::nullopt;
    check(status);
    bytes.resize(size);
    return std::pair<Message, Bytes>(from, std::move(bytes));
  }

  oh_endpoint* view_;
};

namespace detail {
inline oh_endpoint* create_endpoint(const oh_endpoint_options* options) {
  oh_endpoint* endpoint = nullptr;
  check(oh_endpoint_create(options, &endpoint));
  return endpoint;
}
inline oh_comm* create_comm(oh_comm_options options, const int* cancelled) {
  options.struct_size = sizeof(options);
  oh_comm* comm = nullptr;
  check(oh_comm_create_cancellable(&options, cancelled, &comm));
  return comm;
}
}  // namespace detail

// This process's end on one device.
class Endpoint : public EndpointView {
 public:
  explicit Endpoint(const oh_endpoint_options* options = nullptr)
      : EndpointView(detail::create_endpoint(options)), handle_(EndpointView::get()) {}

 private:
  detail::Handle<oh_endpoint, oh_endpoint_destroy> handle_;
};

class CommunicatorOnStream;

// Ranks 0 to size - 1 that meet at one rendezvous.
class Communicator {
 public:
  // Blocks until all ranks have joined. Throws OH_ERR_CANCELLED once another thread has stored a
  // non-zero value in the word at `cancelled`.
  explicit Communicator(const oh_comm_options& options, const int* cancelled = nullptr)
      : handle_(detail::create_comm(options, cancelled)) {}

  uint32_t rank() const { return oh_comm_rank(handle_.get()); }
  uint32_t size() const { return oh_comm_size(handle_.get()); }
  Peer peer(int64_t rank, Timeout timeout = kDefaultTimeout) {
    oh_peer* peer = nullptr;
    check(oh_comm_peer(handle_.get(), rank, timeout.count(), &peer));
    return Peer(peer);
  }
  // After the link to a rank was lost. Both sides call it, or rank 0 and a restarted process.
  Peer reconnect(int64_t rank, Timeout timeout = kDefaultTimeout, const int* cancelled = nullptr) {
    oh_peer* peer = nullptr;
    check(oh_comm_reconnect(handle_.get(), rank, timeout.count(), cancelled, &peer));
    return Peer(peer);
  }
  EndpointView endpoint() const { return EndpointView(oh_comm_endpoint(handle_.get())); }
  void barrier(Timeout timeout = kDefaultTimeout) {
    check(oh_comm_barrier(handle_.get(), timeout.count()));
  }
  // See onehop_stream.hpp. warmup() connects these ranks and their lanes.
  CommunicatorOnStream on(void* stream);
  void warmup(const std::vector<int32_t>& ranks, Timeout timeout = kDefaultTimeout);
  oh_comm_handle device_handle(uint32_t lane);
  oh_comm* get() const { return handle_.get(); }

 private:
  detail::Handle<oh_comm, oh_comm_destroy> handle_;
};

inline Bytes unique_id() {
  return detail::fill(4096, [](void* out, size_t* size) { return oh_unique_id(out, size); });
}

// All metrics of this process in Prometheus' text format: see metrics.h.
inline std::string metrics_text() {
  const Bytes text = detail::fill(1 << 16, [](void* out, size_t* size) {
    return oh_metrics_text(static_cast<char*>(out), size);
  });
  return {text.begin(), text.end() - 1};
}

// Memory that peers can map: every transfer from or to it is a single copy.
class SharedMemory {
 public:
  explicit SharedMemory(size_t size) : size_(size) { check(oh_shared_alloc(size, &data_)); }
  SharedMemory(SharedMemory&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(other.size_) {}
  SharedMemory& operator=(SharedMemory&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    return *this;
  }
  ~SharedMemory() { oh_shared_free(data_); }
  uint8_t* data() const { return static_cast<uint8_t*>(data_); }
  size_t size() const { return size_; }

 private:
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace onehop

#endif  // ONEHOP_ONEHOP_ENDPOINT_HPP_
