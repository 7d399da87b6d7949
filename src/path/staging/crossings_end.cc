// SPDX-License-Identifier: Apache-2.0
//
// Crossings that end, and what they give back.
#include <utility>

#include "path/staging/crossings.h"

namespace oh {

Crossings::~Crossings() {
  for_each([this](Crossing& crossing) {
    if (reap(crossing)) return;
    // The channel or a device that never answered still has buffers of it: they are never used
    // again.
    (void)new std::shared_ptr<StagingPool>(link_.staging);
    for (Crossing::Chunk& chunk : crossing.chunks) (void)chunk.list.release();
  });
}

void Crossings::close() {
  for (List* list : {&holding_, &idle_[0], &idle_[1]}) {
    std::erase_if(*list, [&](const std::shared_ptr<Crossing>& crossing) {
      count_out(*crossing);
      return reap(*crossing);
    });
  }
  if (!link_.staging) return;
  pool().forget(StagingDirection::kOut, this);
  pool().forget(StagingDirection::kIn, this);
}

// Gives everything back, if neither engine nor channel uses it any more.
bool Crossings::reap(Crossing& crossing) {
  if (!crossing.is_quiet() || (crossing.in_flight && !crossing.in_flight->is_over())) return false;
  if (crossing.direction == StagingDirection::kIn && link_.ucx) {
    link_.ucx->targets().revoke(crossing.op);
  }
  for (Crossing::Chunk& chunk : crossing.chunks) give_back(crossing, chunk);
  crossing.chunks.clear();
  pool().forget(crossing.direction, this);
  close(crossing);
  count_out(crossing);
  return true;
}

// Waits need not poll for it any more.
void Crossings::count_out(Crossing& crossing) {
  if (std::exchange(crossing.counted, false)) link_.host->count_polled(-1);
}

Request* Crossings::stopped(StagingDirection direction) {
  Request* found = nullptr;
  bool more = false;
  for_each([&](const Crossing& crossing) {
    bool stopped = crossing.withdrawn || !crossing.failure.ok();
    if (found || crossing.direction != direction || !crossing.request || !stopped) return;
    more = true;
    if (crossing.is_quiet()) found = crossing.request;
  });
  any_stopped_[static_cast<size_t>(direction)] = more;
  return found;
}

// What came before the link was lost is still delivered. But no initiator would learn of a put, and
// a get is useless unless all of its blocks have arrived.
bool Crossings::is_whole(const Crossing& crossing) {
  const bool is_run = crossing.request && crossing.request->is_run();
  return crossing.direction == StagingDirection::kIn && crossing.there == crossing.length &&
         !crossing.withdrawn && crossing.failure.ok() && !is_run;
}

bool Crossings::stop_all(const Status& status, Deadline engines) {
  for_each([&](Crossing& crossing) {
    if (!is_whole(crossing) && crossing.failure.ok()) crossing.failure = status;
  });
  return !at_work(engines);
}

bool Crossings::at_work(Deadline engines) {
  const bool wait = !engines.passed();
  bool any = false;
  for_each([&](const Crossing& crossing) {
    any = any || crossing.busy || (wait && crossing.copying());
  });
  return any;
}

void Crossings::end_receives(const Status& status, bool whole) {
  for_each([&](const Crossing& crossing) {
    bool ours = crossing.direction == StagingDirection::kIn && crossing.request;
    if (ours && (whole || !is_whole(crossing))) link_.leave_in_doubt(*crossing.request, status);
  });
}

}  // namespace oh
