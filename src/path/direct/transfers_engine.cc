// SPDX-License-Identifier: Apache-2.0
//
// Steps of transfers between device memories: the engine, or the GPU's worker, is set to work, and
// asked for errors; transfers_device.cc decides which step.
#include <utility>

#include "base/clock.h"
#include "base/fault.h"
#include "path/direct/transfers.h"

namespace oh {

bool Transfers::take_step(Transfer& transfer, Step step) {
  switch (step) {
    case Step::kNothing:
      return false;
    case Step::kAsk: {
      After& after = transfer.request->device.after;
      Result<bool> complete = without_lock(transfer, [&] { return after.is_complete(); });
      if (complete.ok() && !*complete) return false;
      if (transfer.request) after.reset();
      if (!complete.ok()) {
        fail(transfer, complete.status());
        stop(&transfer, complete.status().code());
      }
      return true;
    }
    case Step::kShowSlab:
      return show_slab(transfer);
    case Step::kStart:
      start_engine(transfer);
      return true;
    case Step::kFill:
      return fill(transfer);
    case Step::kCheck:
      return check(transfer);
  }
  return false;
}

bool Transfers::show_slab(Transfer& transfer) {
  std::shared_ptr<const GpuExport> slab =
      without_lock(transfer, [&] { return pair_.device->slab(); });
  if (slab) offer_slab(slab);
  return true;
}

void Transfers::start_engine(Transfer& transfer) {
  uint64_t offset;
  uint64_t size;
  if (take_chunks(transfer, /*from_back=*/false, 1, &offset, &size) == 0) return;
  EngineCopy copy;
  copy.to = transfer.source ? transfer.mapped : transfer.local;
  copy.from = transfer.source ? transfer.local : transfer.mapped;
  copy.size = transfer.length;
  if (transfer.request) copy.after = transfer.request->device.after.event();
  copy.word = pair_.device->address_of(transfer.slot->word);
  copy.value = slot_word(transfer.sequence, SlotState::kDone);
  Worker* worker = for_worker(transfer) ? pair_.device->worker() : nullptr;
  Result<cuda::Stream> stream = nullptr;
  bool by_worker = false;
  Status status = without_lock(transfer, [&]() -> Status {
    OH_FAULT_POINT("transfer.copy");
    by_worker = worker && worker->copy({reinterpret_cast<uint64_t>(copy.to),
                                        reinterpret_cast<uint64_t>(copy.from), copy.size, copy.word,
                                        copy.value | kSlotByWorker});
    if (by_worker) return {};
    stream = pair_.device->take_stream();
    OH_RETURN_IF_ERROR(stream.status());
    OH_RETURN_IF_ERROR(pair_.device->enqueue(*stream, copy));
    if (worker) worker->call();
    return {};
  });
  if (!stream.ok()) {
    fail(transfer, status);
    account(transfer, 1);
    pair_.wake_them = true;
    return;
  }
  transfer.stream = *stream;
  transfer.flying = true;
  transfer.looked = now_ns();
  if (status.ok()) {
    // What it waited for is in the stream now.
    if (transfer.request) transfer.request->device.after.reset();
  } else {
    // Some of it may have been enqueued: it has ended when the stream is idle.
    fail(transfer, status);
    transfer.looked -= kAskForErrors;
  }
}

// Whether the GPU's worker may copy, if it is there. It pushes only: what the sink pulls is rare.
bool Transfers::for_worker(const Transfer& transfer) const {
  bool small = transfer.source && transfer.length <= Worker::kLongest;
  if (!pair_.device->worker() || !small || !transfer.request) return false;
  // The initiator's rows cannot show our worker, so it serves no get.
  if (transfer.request->serves_peer()) return false;
  const DeviceMemory& ours = transfer.request->device;
  const cuda::Device device = pair_.device->gpu().facts().ordinal;
  if (ours.after.pending() || !ours.exported->for_kernels || ours.exported->device != device) {
    return false;
  }
  // Between processes it is a mapping for kernels, too.
  if (pair_.path != OH_PATH_LOCAL) return true;
  return (transfer.remote_memory & kSlotMappable) &&
         static_cast<cuda::Device>(transfer.remote_memory >> kSlotOrdinal) == device;
}

// Asks how the engine is doing. A lost context writes no word. Other query errors do not mean that
// the copy failed.
bool Transfers::check(Transfer& transfer) {
  transfer.looked = now_ns();
  Result<bool> idle = without_lock(transfer, [&] {
    cuda::Stream stream = transfer.stream ? transfer.stream : pair_.device->worker()->stream();
    return pair_.device->gpu().is_idle(stream);
  });
  if (pair_.device->gpu().is_lost()) return true;
  if (!transfer.flying || !idle.ok() || !*idle || transfer.failure.ok()) return false;
  // Not all of it was enqueued, and what was is over.
  transfer.flying = false;
  account(transfer, 1);
  return pair_.wake_them = true;
}

// What the device was to end has ended as it is.
void Transfers::give_up_on_device() {
  retire_spans();
  Status loss = broken();
  auto give_up = [&](Transfer& transfer, uint32_t chunks) {
    fail(transfer, loss);
    account(transfer, chunks);
  };
  for (std::deque<Span>* spans : {&filling_, &draining_}) {
    for (const Span& span : *spans) {
      span.transfer->lines -= span.lines;
      give_up(*span.transfer, span.lines);
    }
    spans->clear();
  }
  for (Transfer* transfer = active_.front(); transfer; transfer = active_.next(transfer)) {
    if (std::exchange(transfer->flying, false)) give_up(*transfer, 1);
  }
}

}  // namespace oh
