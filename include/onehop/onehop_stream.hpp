// SPDX-License-Identifier: Apache-2.0
//
// The stream domain of onehop.hpp: operations in the order of a GPU's stream, groups of them, and
// handles for kernels. Include onehop.hpp. The contract is in stream.h.
//
// Threading: any number of threads and streams may use one peer; a group belongs to its thread.
// Ownership: an OnStream owns nothing. The peer (or communicator) and the stream must outlive it.
// Memory must stay valid until the stream has finished with it.
#ifndef ONEHOP_ONEHOP_STREAM_HPP_
#define ONEHOP_ONEHOP_STREAM_HPP_

#include "onehop/onehop.hpp"

namespace onehop {

struct StreamOptions {
  uint32_t lane = 0;                  // 0 to OH_LANES - 1
  Timeout timeout = kDefaultTimeout;  // of each wait on the device
  // Device memory, 8 bytes each. size_from: bytes to send, read when the send runs.
  // size_to: gets the size of the received message.
  const uint64_t* size_from = nullptr;
  uint64_t* size_to = nullptr;
};

namespace detail {
inline oh_stream_options with(const StreamOptions& given) {
  auto options = sized<oh_stream_options>();
  options.timeout_ns = given.timeout.count();
  options.lane = given.lane;
  options.size_from = given.size_from;
  options.size_to = given.size_to;
  return options;
}
}  // namespace detail

// A peer's operations on one stream. Each call enqueues and returns. Peer::check_async_error
// reports later errors.
class OnStream {
 public:
  OnStream(oh_peer* peer, void* stream) : peer_(peer), stream_(stream) {}

  void send(const void* data, size_t size, const StreamOptions& given = {}) const {
    auto options = detail::with(given);
    check(oh_peer_stream_send(peer_, stream_, data, size, &options));
  }
  void recv(void* data, size_t capacity, const StreamOptions& given = {}) const {
    auto options = detail::with(given);
    check(oh_peer_stream_recv(peer_, stream_, data, capacity, &options));
  }
  // Copies by the copy engine, or by proxy. A signal that follows makes the bytes visible there.
  void put(const void* data, const RemoteRegion& remote, size_t offset, size_t size) const {
    check(oh_peer_stream_put(peer_, stream_, data, remote.get(), offset, size));
  }
  // Copies out of the region, for later work of the stream.
  void get(void* data, const RemoteRegion& remote, size_t offset, size_t size) const {
    check(oh_peer_stream_get(peer_, stream_, data, remote.get(), offset, size));
  }
  // `before`: device memory for the previous value, or null. See oh_peer_stream_fetch_add.
  void fetch_add(const RemoteRegion& remote, size_t offset, uint64_t value,
                 uint64_t* before = nullptr) const {
    check(oh_peer_stream_fetch_add(peer_, stream_, remote.get(), offset, value, before));
  }
  void compare_swap(const RemoteRegion& remote, size_t offset, uint64_t expected, uint64_t value,
                    uint64_t* before = nullptr) const {
    check(
        oh_peer_stream_compare_swap(peer_, stream_, remote.get(), offset, expected, value, before));
  }
  // Many blocks. The arrays belong to the caller again when the call returns.
  void put_batch(const RemoteRegion& remote, oh_batch batch) const {
    batch.struct_size = sizeof(batch);
    check(oh_peer_stream_put_batch(peer_, stream_, remote.get(), &batch));
  }
  void get_batch(const RemoteRegion& remote, oh_batch batch) const {
    batch.struct_size = sizeof(batch);
    check(oh_peer_stream_get_batch(peer_, stream_, remote.get(), &batch));
  }
  // The local blocks are contiguous.
  void scatter(const RemoteRegion& remote, oh_batch batch) const {
    batch.packed = 1;
    put_batch(remote, batch);
  }
  void gather(const RemoteRegion& remote, oh_batch batch) const {
    batch.packed = 1;
    get_batch(remote, batch);
  }
  void put_regions(oh_region_batch batch) const {
    batch.struct_size = sizeof(batch);
    check(oh_peer_stream_put_regions(peer_, stream_, &batch));
  }
  void get_regions(oh_region_batch batch) const {
    batch.struct_size = sizeof(batch);
    check(oh_peer_stream_get_regions(peer_, stream_, &batch));
  }
  void signal(uint32_t slot, uint64_t count = 1) const {
    check(oh_peer_stream_signal(peer_, stream_, slot, count));
  }
  void wait_signal(uint32_t slot, uint64_t count = 1, Timeout timeout = kDefaultTimeout) const {
    StreamOptions given;
    given.timeout = timeout;
    auto options = detail::with(given);
    check(oh_peer_stream_wait_signal(peer_, stream_, slot, count, &options));
  }

 private:
  oh_peer* peer_;
  void* stream_;
};

// The same by rank. Peers connect on first use, which blocks.
class CommunicatorOnStream {
 public:
  CommunicatorOnStream(Communicator& comm, void* stream) : comm_(&comm), stream_(stream) {}

  void send(const void* data, size_t size, int64_t to, const StreamOptions& options = {}) const {
    comm_->peer(to).on(stream_).send(data, size, options);
  }
  void recv(void* data, size_t capacity, int64_t from, const StreamOptions& options = {}) const {
    comm_->peer(from).on(stream_).recv(data, capacity, options);
  }
  Communicator& communicator() const { return *comm_; }

 private:
  Communicator* comm_;
  void* stream_;
};

// Collects the thread's stream operations from its creation to end(), which starts them together.
// Groups may be nested; only the outermost starts them. Destroy it on the thread that made it.
class Group {
 public:
  Group() { check(oh_group_begin()); }
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;
  // Without end(), for example when an exception passes: errors are not reported.
  ~Group() {
    if (open_) (void)oh_group_end();
  }
  void end() {
    open_ = false;
    check(oh_group_end());
  }

 private:
  bool open_ = true;
};

inline OnStream Peer::on(void* stream) const { return OnStream(get(), stream); }
inline void Peer::warmup(Timeout timeout) { check(oh_peer_warmup(get(), timeout.count())); }
inline oh_lane_handle Peer::device_handle(uint32_t lane) const {
  oh_lane_handle handle{};
  check(oh_peer_device_handle(get(), lane, &handle));
  return handle;
}
inline oh_lane_target Peer::lane_target(void* data, size_t size) const {
  oh_lane_target target{};
  check(oh_peer_lane_target(get(), data, size, &target));
  return target;
}
inline void Peer::reset_lane(uint32_t lane, Timeout timeout) {
  check(oh_peer_reset_lane(get(), lane, timeout.count()));
}
inline oh_stream_info Peer::stream_info() const {
  auto info = detail::sized<oh_stream_info>();
  check(oh_peer_get_stream_info(get(), &info));
  return info;
}

inline oh_remote_memory RemoteRegion::device() const {
  oh_remote_memory memory{};
  check(oh_remote_region_device(get(), &memory));
  return memory;
}

inline CommunicatorOnStream Communicator::on(void* stream) {
  return CommunicatorOnStream(*this, stream);
}
inline oh_comm_handle Communicator::device_handle(uint32_t lane) {
  oh_comm_handle handle{};
  check(oh_comm_device_handle(get(), lane, &handle));
  return handle;
}
inline void Communicator::warmup(const std::vector<int32_t>& ranks, Timeout timeout) {
  check(oh_comm_warmup(get(), ranks.data(), ranks.size(), timeout.count()));
}

}  // namespace onehop

#endif  // ONEHOP_ONEHOP_STREAM_HPP_
