// SPDX-License-Identifier: Apache-2.0
//
// StagingPipeline that end, and what they give back.
#include <utility>

#include "path/staging/staging_pipeline.h"

namespace oh {

StagingPipeline::~StagingPipeline() {
  for_each([this](StagingTransfer& transfer) {
    if (reap(transfer)) return;
    // The channel or a device that never answered still has buffers of it: they are never used
    // again.
    (void)new std::shared_ptr<StagingPool>(link_.staging);
    for (StagingTransfer::Chunk& chunk : transfer.chunks) (void)chunk.list.release();
  });
}

void StagingPipeline::close() {
  for (List* list : {&holding_, &idle_[0], &idle_[1]}) {
    std::erase_if(*list, [&](const std::shared_ptr<StagingTransfer>& transfer) {
      count_out(*transfer);
      return reap(*transfer);
    });
  }
  if (!link_.staging) return;
  pool().forget(StagingDirection::kOut, this);
  pool().forget(StagingDirection::kIn, this);
}

// Gives everything back, if neither engine nor channel uses it any more.
bool StagingPipeline::reap(StagingTransfer& transfer) {
  if (!transfer.is_quiet() || (transfer.in_flight && !transfer.in_flight->is_over())) return false;
  if (transfer.direction == StagingDirection::kIn && link_.ucx) {
    link_.ucx->targets().revoke(transfer.op);
  }
  for (StagingTransfer::Chunk& chunk : transfer.chunks) give_back(transfer, chunk);
  transfer.chunks.clear();
  pool().forget(transfer.direction, this);
  close(transfer);
  count_out(transfer);
  return true;
}

// Waits need not poll for it any more.
void StagingPipeline::count_out(StagingTransfer& transfer) {
  if (std::exchange(transfer.counted, false)) link_.host->count_polled(-1);
}

Request* StagingPipeline::stopped(StagingDirection direction) {
  Request* found = nullptr;
  bool more = false;
  for_each([&](const StagingTransfer& transfer) {
    bool stopped = transfer.withdrawn || !transfer.failure.ok();
    if (found || transfer.direction != direction || !transfer.request || !stopped) return;
    more = true;
    if (transfer.is_quiet()) found = transfer.request;
  });
  any_stopped_[static_cast<size_t>(direction)] = more;
  return found;
}

// What came before the link was lost is still delivered. But no initiator would learn of a put, and
// a get is useless unless all of its blocks have arrived.
bool StagingPipeline::is_whole(const StagingTransfer& transfer) {
  const bool is_run = transfer.request && transfer.request->is_run();
  return transfer.direction == StagingDirection::kIn && transfer.there == transfer.length &&
         !transfer.withdrawn && transfer.failure.ok() && !is_run;
}

bool StagingPipeline::stop_all(const Status& status, Deadline engines) {
  for_each([&](StagingTransfer& transfer) {
    if (!is_whole(transfer) && transfer.failure.ok()) transfer.failure = status;
  });
  return !at_work(engines);
}

bool StagingPipeline::at_work(Deadline engines) {
  const bool wait = !engines.passed();
  bool any = false;
  for_each([&](const StagingTransfer& transfer) {
    any = any || transfer.busy || (wait && transfer.copying());
  });
  return any;
}

void StagingPipeline::end_receives(const Status& status, bool whole) {
  for_each([&](const StagingTransfer& transfer) {
    bool ours = transfer.direction == StagingDirection::kIn && transfer.request;
    if (ours && (whole || !is_whole(transfer))) link_.leave_in_doubt(*transfer.request, status);
  });
}

}  // namespace oh
