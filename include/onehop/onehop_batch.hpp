// SPDX-License-Identifier: Apache-2.0
//
// The batches of onehop.hpp: many blocks in one call, at once, prepared for repeated posts, or as
// messages. Include onehop.hpp. The contract is in batch.h.
//
// Threading: any number of threads may post one prepared batch.
#ifndef ONEHOP_ONEHOP_BATCH_HPP_
#define ONEHOP_ONEHOP_BATCH_HPP_

#include "onehop/onehop.hpp"

namespace onehop {

// Blocks that were checked and divided once. Keep their memory until the object is destroyed.
class PreparedBatch {
 public:
  explicit PreparedBatch(oh_prepared_batch* handle) : handle_(handle) {}
  // Moves the blocks once, with the bytes that the memory holds now. `background`: as in
  // oh_put_options.
  Request post(const Bytes* notify = nullptr, After after = {}, bool background = false) {
    auto options = detail::with(kDefaultTimeout, notify, after);
    options.background = background;
    oh_request* request = nullptr;
    check(oh_prepared_batch_post(handle_.get(), &options, &request));
    return Request(request);
  }
  oh_prepared_batch* get() const { return handle_.get(); }

 private:
  detail::Handle<oh_prepared_batch, oh_prepared_batch_release> handle_;
};

namespace detail {
// `verb`: a call that posts. `where`: its arguments before the batch.
template <typename Verb, typename Batch, typename... Where>
Request run_batch(Verb verb, Batch& batch, const oh_put_options& options, Where... where) {
  batch.struct_size = sizeof(batch);
  oh_request* request = nullptr;
  check(verb(where..., &batch, &options, &request));
  return Request(request);
}
// The same for a call that prepares.
template <typename Verb, typename Batch, typename... Where>
PreparedBatch prepare_batch(Verb verb, Batch& batch, Where... where) {
  batch.struct_size = sizeof(batch);
  oh_prepared_batch* prepared = nullptr;
  check(verb(where..., &batch, &prepared));
  return PreparedBatch(prepared);
}
}  // namespace detail

inline Request Peer::put_batch(const RemoteRegion& remote, oh_batch batch, const Bytes* notify,
                               After after) {
  return detail::run_batch(oh_peer_put_batch, batch, detail::with(kDefaultTimeout, notify, after),
                           get(), remote.get());
}
inline Request Peer::get_batch(const RemoteRegion& remote, oh_batch batch, const Bytes* notify,
                               After after) {
  return detail::run_batch(oh_peer_get_batch, batch, detail::with(kDefaultTimeout, notify, after),
                           get(), remote.get());
}
inline Request Peer::get_batch(const RemoteRegion& remote, oh_batch batch, After after) {
  return get_batch(remote, batch, nullptr, after);
}
inline Request Peer::scatter(const RemoteRegion& remote, oh_batch batch, const Bytes* notify,
                             After after) {
  return detail::run_batch(oh_peer_scatter, batch, detail::with(kDefaultTimeout, notify, after),
                           get(), remote.get());
}
inline Request Peer::gather(const RemoteRegion& remote, oh_batch batch, const Bytes* notify,
                            After after) {
  return detail::run_batch(oh_peer_gather, batch, detail::with(kDefaultTimeout, notify, after),
                           get(), remote.get());
}
inline Request Peer::gather(const RemoteRegion& remote, oh_batch batch, After after) {
  return gather(remote, batch, nullptr, after);
}
inline PreparedBatch Peer::prepare_put(const RemoteRegion& remote, oh_batch batch) {
  return detail::prepare_batch(oh_peer_prepare_put, batch, get(), remote.get());
}
inline PreparedBatch Peer::prepare_get(const RemoteRegion& remote, oh_batch batch) {
  return detail::prepare_batch(oh_peer_prepare_get, batch, get(), remote.get());
}
inline Request Peer::put_regions(oh_region_batch batch, const Bytes* notify, After after) {
  return detail::run_batch(oh_peer_put_regions, batch, detail::with(kDefaultTimeout, notify, after),
                           get());
}
inline Request Peer::get_regions(oh_region_batch batch, const Bytes* notify, After after) {
  return detail::run_batch(oh_peer_get_regions, batch, detail::with(kDefaultTimeout, notify, after),
                           get());
}
inline PreparedBatch Peer::prepare_put_regions(oh_region_batch batch) {
  return detail::prepare_batch(oh_peer_prepare_put_regions, batch, get());
}
inline PreparedBatch Peer::prepare_get_regions(oh_region_batch batch) {
  return detail::prepare_batch(oh_peer_prepare_get_regions, batch, get());
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
