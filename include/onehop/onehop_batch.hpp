// SPDX-License-Identifier: Apache-2.0
//
// The batches of onehop.hpp: many blocks by one call: at once, prepared to be posted again and
// again, or as messages. Include onehop.hpp.
//
// Threading: any number of threads may post one prepared batch.
#ifndef ONEHOP_ONEHOP_BATCH_HPP_
#define ONEHOP_ONEHOP_BATCH_HPP_

#include "onehop/onehop.hpp"

namespace onehop {

// Blocks that were checked and divided once. Its memory must stay until it is destroyed.
class PreparedBatch {
 public:
  explicit PreparedBatch(oh_prepared_batch* handle) : handle_(handle) {}
  // Moves the blocks once, with the bytes that the memory has now; `notify` for puts only.
  Request post(const Bytes* notify = nullptr, After after = {}) {
    auto options = detail::with(kDefaultTimeout, notify, after);
    oh_request* request = nullptr;
    check(oh_prepared_batch_post(handle_.get(), &options, &request));
    return Request(request);
  }
  oh_prepared_batch* get() const { return handle_.get(); }

 private:
  detail::Handle<oh_prepared_batch, oh_prepared_batch_release> handle_;
};

namespace detail {
// `verb`: oh_peer_put_batch and its kin.
template <typename Verb>
Request run_batch(Verb verb, const Peer& peer, const RemoteRegion& remote, oh_batch& batch,
                  const oh_put_options& options) {
  batch.struct_size = sizeof(batch);
  oh_request* request = nullptr;
  check(verb(peer.get(), remote.get(), &batch, &options, &request));
  return Request(request);
}
template <typename Verb>
PreparedBatch prepare_batch(Verb verb, const Peer& peer, const RemoteRegion& remote,
                            oh_batch& batch) {
  batch.struct_size = sizeof(batch);
  oh_prepared_batch* prepared = nullptr;
  check(verb(peer.get(), remote.get(), &batch, &prepared));
  return PreparedBatch(prepared);
}
}  // namespace detail

inline Request Peer::put_batch(const RemoteRegion& remote, oh_batch batch, const Bytes* notify,
                               After after) {
  return detail::run_batch(oh_peer_put_batch, *this, remote, batch,
                           detail::with(kDefaultTimeout, notify, after));
}
inline Request Peer::get_batch(const RemoteRegion& remote, oh_batch batch, After after) {
  return detail::run_batch(oh_peer_get_batch, *this, remote, batch,
                           detail::with(kDefaultTimeout, nullptr, after));
}
inline Request Peer::scatter(const RemoteRegion& remote, oh_batch batch, const Bytes* notify,
                             After after) {
  return detail::run_batch(oh_peer_scatter, *this, remote, batch,
                           detail::with(kDefaultTimeout, notify, after));
}
inline Request Peer::gather(const RemoteRegion& remote, oh_batch batch, After after) {
  return detail::run_batch(oh_peer_gather, *this, remote, batch,
                           detail::with(kDefaultTimeout, nullptr, after));
}
inline PreparedBatch Peer::prepare_put(const RemoteRegion& remote, oh_batch batch) {
  return detail::prepare_batch(oh_peer_prepare_put, *this, remote, batch);
}
inline PreparedBatch Peer::prepare_get(const RemoteRegion& remote, oh_batch batch) {
  return detail::prepare_batch(oh_peer_prepare_get, *this, remote, batch);
}

inline void Peer::send_batch(oh_blocks blocks, uint64_t tag, Timeout timeout, After after) {
  blocks.struct_size = sizeof(blocks);
  auto options = detail::with(timeout, after);
  check(oh_peer_send_batch(get(), &blocks, tag, &options));
}
inline Message Peer::recv_batch(oh_blocks blocks, uint64_t tag, Timeout timeout, After after) {
  blocks.struct_size = sizeof(blocks);
  auto options = detail::with(timeout, after);
  auto message = detail::sized<Message>();
  check(oh_peer_recv_batch(get(), &blocks, tag, &options, &message));
  return message;
}
inline Request Peer::irecv_batch(oh_blocks blocks, uint64_t tag, After after) {
  blocks.struct_size = sizeof(blocks);
  auto options = detail::with(kDefaultTimeout, after);
  oh_request* request = nullptr;
  check(oh_peer_irecv_batch(get(), &blocks, tag, &options, &request));
  return Request(request);
}

}  // namespace onehop

#endif  // ONEHOP_ONEHOP_BATCH_HPP_
