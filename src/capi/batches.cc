// SPDX-License-Identifier: Apache-2.0
//
// Batches: checks the blocks, then either moves them immediately or prepares them for later posts.
#include "capi/batch_check.h"
#include "capi/one_sided.h"
#include "device/batch_plan.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

namespace oh {

// The object behind a handle. Posts in flight hold it, too.
struct PreparedBatch {
  std::shared_ptr<Endpoint> endpoint;
  std::shared_ptr<Peer> peer;
  CheckedBatch batch;
  std::unique_ptr<BatchPlan> plan;  // null: each post iterates over the blocks
};

}  // namespace oh

struct oh_prepared_batch {
  std::shared_ptr<PreparedBatch> prepared;
};

namespace oh {
namespace {

oh_status run_batch(const oh_peer& peer, Result<CheckedBatch> batch, const oh_put_options* options,
                    oh_request** request) {
  OH_REPORT_IF_ERROR(batch.status());
  return run(peer.endpoint, *peer.peer, batch->move(), options, request);
}

oh_status prepare_batch(const oh_peer& peer, Result<CheckedBatch> batch, oh_prepared_batch** out) {
  OH_REPORT_IF_ERROR(peer.endpoint->usable());
  OH_REPORT_IF_ERROR(peer.peer->usable());
  OH_REPORT_IF_ERROR(batch.status());
  Result<std::unique_ptr<BatchPlan>> plan = peer.peer->operations().one_sided().plan(batch->move());
  OH_REPORT_IF_ERROR(plan.status());
  std::shared_ptr<PreparedBatch> prepared(
      new PreparedBatch{peer.endpoint, peer.peer, std::move(*batch), std::move(*plan)});
  *out = new oh_prepared_batch{std::move(prepared)};
  return OH_OK;
}

}  // namespace
}  // namespace oh

extern "C" {

#define OH_CHECK_BATCH(peer, remote, batch) \
  OH_CHECK_ARGUMENT(peer);                  \
  OH_CHECK_ARGUMENT(remote);                \
  OH_CHECK_ARGUMENT(batch)

oh_status oh_peer_put_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                            const oh_put_options* options, oh_request** request) {
  OH_CHECK_BATCH(peer, remote, batch);
  return run_batch(*peer, read_batch(*peer, *remote, *batch, /*put=*/true), options, request);
}

oh_status oh_peer_get_batch(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                            const oh_put_options* options, oh_request** request) {
  OH_CHECK_BATCH(peer, remote, batch);
  return run_batch(*peer, read_batch(*peer, *remote, *batch, /*put=*/false), options, request);
}

oh_status oh_peer_scatter(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                          const oh_put_options* options, oh_request** request) {
  OH_CHECK_BATCH(peer, remote, batch);
  return run_batch(*peer, read_batch(*peer, *remote, *batch, /*put=*/true, /*packed=*/true),
                   options, request);
}

oh_status oh_peer_gather(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                         const oh_put_options* options, oh_request** request) {
  OH_CHECK_BATCH(peer, remote, batch);
  return run_batch(*peer, read_batch(*peer, *remote, *batch, /*put=*/false, /*packed=*/true),
                   options, request);
}

oh_status oh_peer_prepare_put(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                              oh_prepared_batch** prepared) {
  OH_CHECK_BATCH(peer, remote, batch);
  OH_CHECK_ARGUMENT(prepared);
  return prepare_batch(*peer, read_batch(*peer, *remote, *batch, /*put=*/true), prepared);
}

oh_status oh_peer_prepare_get(oh_peer* peer, oh_remote_region* remote, const oh_batch* batch,
                              oh_prepared_batch** prepared) {
  OH_CHECK_BATCH(peer, remote, batch);
  OH_CHECK_ARGUMENT(prepared);
  return prepare_batch(*peer, read_batch(*peer, *remote, *batch, /*put=*/false), prepared);
}

oh_status oh_peer_put_regions(oh_peer* peer, const oh_region_batch* batch,
                              const oh_put_options* options, oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(batch);
  return run_batch(*peer, read_batch(*peer, *batch, /*put=*/true), options, request);
}

oh_status oh_peer_get_regions(oh_peer* peer, const oh_region_batch* batch,
                              const oh_put_options* options, oh_request** request) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(batch);
  return run_batch(*peer, read_batch(*peer, *batch, /*put=*/false), options, request);
}

oh_status oh_peer_prepare_put_regions(oh_peer* peer, const oh_region_batch* batch,
                                      oh_prepared_batch** prepared) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(batch);
  OH_CHECK_ARGUMENT(prepared);
  return prepare_batch(*peer, read_batch(*peer, *batch, /*put=*/true), prepared);
}

oh_status oh_peer_prepare_get_regions(oh_peer* peer, const oh_region_batch* batch,
                                      oh_prepared_batch** prepared) {
  OH_CHECK_ARGUMENT(peer);
  OH_CHECK_ARGUMENT(batch);
  OH_CHECK_ARGUMENT(prepared);
  return prepare_batch(*peer, read_batch(*peer, *batch, /*put=*/false), prepared);
}

oh_status oh_prepared_batch_post(oh_prepared_batch* prepared, const oh_put_options* options,
                                 oh_request** request) {
  OH_CHECK_ARGUMENT(prepared);
  std::shared_ptr<PreparedBatch> held = prepared->prepared;
  return run(held->endpoint, *held->peer, held->batch.move(held->plan.get()), options, request);
}

void oh_prepared_batch_release(oh_prepared_batch* prepared) {
  if (!prepared || !prepared->prepared->endpoint->is_of_this_process()) return;
  const AwaitsCallbacks end(*prepared->prepared->endpoint);
  delete prepared;
}

}  // extern "C"
