// SPDX-License-Identifier: Apache-2.0
#include "path/direct/device_copies.h"

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "device/copy_ticket.h"
#include "device/locate.h"
#include "link/memory_exchange.h"

namespace oh {
namespace {
// How long the claimer waits for the owner to begin the copy before it takes over.
constexpr int64_t kTakeOverAfter = 20 * kMicrosecond;
// The same where the GPU would have to switch contexts for the take-over (CopySide).
constexpr int64_t kSwitchAfter = 300 * kMicrosecond;

// What a slot says of the memory at one end.
TransferEnd end_of(uint32_t memory) {
  return {(memory & kSlotDevice) != 0, (memory & kSlotMappable) != 0, (memory & kSlotPinned) != 0,
          (memory & kSlotPending) != 0};
}
}  // namespace

uint32_t DeviceCopies::memory_of(const Request& request, uint32_t block) const {
  if (!request.on_device) {
    if (!link_.selection->opens_blocks()) return 0;
    const bool shared = link_.path == OH_PATH_LOCAL
                            ? SharedHeap::instance().find(request.data, request.size) != nullptr
                            : block != 0;
    return shared ? kSlotMappable : request.pinned && link_.device ? kSlotPinned : 0u;
  }
  const GpuExport& exported = *request.device.exported;
  const bool mappable = link_.selection->is_mappable(kind_of(exported));
  return kSlotDevice | (mappable ? kSlotMappable : 0u) | (request.pending() ? kSlotPending : 0u) |
         static_cast<uint32_t>(exported.device) << kSlotOrdinal;
}

// The kind as the peer sees it: whether it can map the memory or, within the process, address it.
MemoryKind DeviceCopies::kind_of(const GpuExport& exported) const {
  const bool open = link_.path == OH_PATH_LOCAL ? exported.plain() : exported.mappable();
  return open ? MemoryKind::kDevice : MemoryKind::kDevicePrivate;
}

bool DeviceCopies::is_open(const GpuExport& exported) const {
  const bool same_gpu = link_.same_gpu && exported.device == link_.gpu->facts().ordinal;
  return link_.selection->is_open(kind_of(exported), same_gpu);
}

bool DeviceCopies::wants_slab(const GpuExport& sink) const {
  return link_.device && link_.device->may_have_slab() && link_.selection->has_slabs() &&
         !is_open(sink);
}

void DeviceCopies::prepare_slab(const GpuExport& sink) {
  if (!wants_slab(sink)) return;
  std::shared_ptr<const GpuExport> slab = link_.device->slab();
  if (!slab) return;
  LinkGuard guard(link_);
  offer_slab(slab);
}

bool DeviceCopies::work(Active& active, Transfer* focus) {
  bool any = pipe_.retire();
  any = pipe_.drain() || any;
  if (pipe_.is_late()) return pipe_.check() || any;
  auto is_active = [](Transfer* transfer) {
    return transfer && transfer->on_device &&
           static_cast<ListNode<InActiveTransfers>*>(transfer)->linked();
  };
  Step step = Step::kNothing;
  Transfer* chosen = is_active(focus) ? focus : nullptr;
  if (chosen) step = next_step(*chosen);
  // A transfer that polls its producer must not block others. The focus, too, polls in its turn.
  if (step == Step::kAsk) step = Step::kNothing;
  for (Transfer* transfer = active.front(); transfer && step == Step::kNothing;
       transfer = active.next(transfer)) {
    if (!transfer->on_device) continue;
    chosen = transfer;
    step = next_step(*transfer);
  }
  if (step == Step::kNothing) return any;
  active.erase(chosen);
  active.push_back(chosen);
  // This releases the lock: the list may have changed afterwards.
  return take_step(*chosen, step) || any;
}

DeviceCopies::Step DeviceCopies::next_step(Transfer& transfer) {
  if (transfer.copiers > 0) return Step::kNothing;
  if (transfer.mode == CopyMode::kUndecided) {
    if (!transfer.owner) {
      Step step = decide(transfer);
      if (transfer.mode == CopyMode::kUndecided) return step;
    } else {
      transfer.learn();
    }
  }
  // The owner may have found that it cannot map the buffer, and chosen the relay.
  if (transfer.mode == CopyMode::kEngineOfOwner && !transfer.owner) transfer.learn();
  bool pending = transfer.request && transfer.request->pending();
  switch (transfer.mode) {
    case CopyMode::kUndecided:
      return Step::kNothing;
    case CopyMode::kStaged:
    case CopyMode::kRelay:
      if (!transfer.source) return Step::kNothing;  // drain() is driven by the pipe
      if (pending) return Step::kAsk;
      if (transfer.mode == CopyMode::kStaged && !slab_is_reached(transfer)) return Step::kNothing;
      return !transfer.all_taken() && pipe_.free_lines(transfer) > 0 ? Step::kFill : Step::kNothing;
    case CopyMode::kEngineOfClaimer:
      if (transfer.owner) return Step::kNothing;
      break;
    case CopyMode::kEngineOfOwner:
      if (!transfer.owner && !may_take_over(transfer)) return Step::kNothing;
      break;
  }
  if (transfer.engine_copies) {
    return now_ns() - transfer.looked > kAskForErrors ? Step::kCheck : Step::kNothing;
  }
  if (transfer.all_taken()) return Step::kNothing;  // the peer has begun, or stopped it
  switch (reach(transfer)) {
    case Reach::kYes:
      return Step::kStart;
    case Reach::kLater:
      return Step::kNothing;
    case Reach::kNo:
    case Reach::kUnknown:
      break;
  }
  // The claimer chose the owner's engine, but it cannot reach the claimer's buffer: use the relay.
  if (transfer.owner) {
    auto engine = static_cast<uint32_t>(CopyMode::kEngineOfOwner);
    transfer.slot->mode.compare_exchange_strong(engine, static_cast<uint32_t>(CopyMode::kRelay));
    transfer.mode = CopyMode::kUndecided;
    transfer.learn();
    if (transfer.between_devices()) say_slow(transfer);
  }
  return Step::kNothing;
}

// Whether the claimer takes over from the owner's engine: the owner has not begun in time, because
// its threads do something else. The side that takes the only chunk copies.
bool DeviceCopies::may_take_over(const Transfer& transfer) const {
  if (transfer.engine_copies) return true;
  bool ready = !(transfer.remote_memory & kSlotPending);
  const int64_t after = link_.selection->peer_copies_all() ? kSwitchAfter : kTakeOverAfter;
  return ready && now_ns() - transfer.looked > after && !transfer.all_taken();
}

// Decides, as the claimer, which side copies. While that is open, returns the step to take first.
DeviceCopies::Step DeviceCopies::decide(Transfer& transfer) {
  const Request* request = transfer.request;
  TransferEnd ours;  // nothing, once the request has completed
  if (request) {
    ours = end_of(transfer.local_memory);
    ours.pending = request->pending();
    if (ours.device) ours.open = is_open(*request->device.exported);
  }
  DeviceCopy copy =
      link_.selection->device_copy(ours, end_of(transfer.remote_memory), transfer.source);
  for (;;) {
    switch (copy_step(copy)) {
      case CopyStep::kReachTheirs:
        copy.theirs = reach(transfer);
        break;
      case CopyStep::kReachSlab:
        // The slab for a region or an any-source receive is created when it is first needed.
        if (!transfer.source && !has_slab() && wants_slab(*request->device.exported)) {
          return Step::kShowSlab;
        }
        copy.slab = transfer.source ? reach_slab(transfer) : has_slab() ? Reach::kYes : Reach::kNo;
        break;
      case CopyStep::kWait:
        return Step::kNothing;
      case CopyStep::kAwaitEvent:
        return Step::kAsk;
      case CopyStep::kOwner:
        transfer.set_mode(CopyMode::kEngineOfOwner);
        transfer.looked = now_ns();  // see may_take_over()
        return Step::kNothing;
      case CopyStep::kClaimer:
        transfer.set_mode(CopyMode::kEngineOfClaimer);
        return Step::kNothing;
      case CopyStep::kStaged:
        transfer.set_mode(CopyMode::kStaged);
        return Step::kNothing;
      case CopyStep::kRelay:
        if (request && transfer.between_devices()) say_slow(transfer);
        transfer.set_mode(CopyMode::kRelay);
        return Step::kNothing;
    }
  }
}

Reach DeviceCopies::reach(Transfer& transfer) {
  if (transfer.mapped) return Reach::kYes;
  if (!link_.device) return Reach::kNo;
  if (link_.path == OH_PATH_LOCAL) {
    auto device = static_cast<cuda::Device>(transfer.remote_memory >> kSlotOrdinal);
    bool ours =
        (transfer.remote_memory & kSlotDevice) && device == link_.device->gpu().facts().ordinal;
    if (!ours && !(transfer.remote_memory & kSlotMappable)) return Reach::kNo;
    transfer.mapped = reinterpret_cast<uint8_t*>(transfer.remote);
    return Reach::kYes;
  }
  if (!(transfer.remote_memory & kSlotMappable)) return Reach::kNo;
  const bool device = (transfer.remote_memory & kSlotDevice) != 0;
  return reach_block(transfer, transfer.remote_block, transfer.remote, transfer.length, device);
}

Reach DeviceCopies::reach_block(Transfer& transfer, uint32_t number, uint64_t address,
                                uint64_t size, bool device) {
  if (link_.imports.failed(number)) return Reach::kNo;
  transfer.mapped = link_.mapped(number, address, size, &transfer.import);
  if (!transfer.import) {
    if (link_.imports.should_ask(number)) link_.memory->want_block(number);
    return Reach::kLater;
  }
  bool usable = transfer.mapped && transfer.import->on_device == device;
  if (!usable) transfer.mapped = nullptr;
  return usable ? Reach::kYes : Reach::kNo;
}

bool DeviceCopies::has_slab() const {
  return link_.segment->incoming_pipe().slab.number.load(std::memory_order_relaxed) != 0;
}

void DeviceCopies::offer_slab(const std::shared_ptr<const GpuExport>& slab) {
  if (has_slab()) return;
  link_.memory->publish(slab);
  PipeSlab& shown = link_.segment->incoming_pipe().slab;
  shown.address = reinterpret_cast<uint64_t>(link_.device->slab_part(0));
  // release: the address; pairs with reach_slab().
  shown.number.store(slab->number, std::memory_order_release);
}

// Whether the local engine can address the peer's slab.
Reach DeviceCopies::reach_slab(Transfer& transfer) {
  if (transfer.mapped) return Reach::kYes;
  PipeSlab& slab = link_.segment->outgoing_pipe().slab;
  uint32_t number = slab.number.load(std::memory_order_acquire);
  if (number == 0 || !link_.device) return Reach::kNo;
  if (link_.path == OH_PATH_LOCAL) {
    transfer.mapped = reinterpret_cast<uint8_t*>(slab.address);
    return Reach::kYes;
  }
  return reach_block(transfer, number, slab.address, kSlabSize, /*device=*/true);
}

// Whether the source of a staged transfer can address the slab now. Falls back to the relay if it
// never can.
bool DeviceCopies::slab_is_reached(Transfer& transfer) {
  Reach slab = reach_slab(transfer);
  if (slab != Reach::kNo) return slab == Reach::kYes;
  auto staged = static_cast<uint32_t>(CopyMode::kStaged);
  transfer.slot->mode.compare_exchange_strong(staged, static_cast<uint32_t>(CopyMode::kRelay));
  transfer.learn();
  say_slow(transfer);
  return false;
}

// Warns once per link that bytes take a slower path than the hardware allows.
void DeviceCopies::say_slow(const Transfer& transfer) {
  if (said_slow_) return;
  said_slow_ = true;
  const Request* request = transfer.request;
  bool ours = request && request->on_device && !request->device.exported->mappable();
  OH_LOG(kWarn,
         "device memory travels to and from %s through host memory, which is several times slower: "
         "%s",
         link_.name.c_str(),
         ours
             ? request->device.exported->why_not.c_str()
             : "neither side can map the other's buffer (the peer's log says why its own cannot be "
               "mapped)");
}

// ---- Steps ------------------------------------------------------------------------------------

bool DeviceCopies::take_step(Transfer& transfer, Step step) {
  switch (step) {
    case Step::kNothing:
      return false;
    case Step::kAsk: {
      After& after = transfer.request->device.after;
      Result<bool> complete = without_lock(link_, transfer, [&] { return after.is_complete(); });
      if (complete.ok() && !*complete) return false;
      if (transfer.request) after.reset();
      if (!complete.ok()) {
        transfer.fail(complete.status());
        transfer.stop(complete.status().code());
      }
      return true;
    }
    case Step::kShowSlab:
      return show_slab(transfer);
    case Step::kStart:
      start_engine(transfer);
      return true;
    case Step::kFill:
      return pipe_.fill(transfer);
    case Step::kCheck:
      return check(transfer);
  }
  return false;
}

bool DeviceCopies::show_slab(Transfer& transfer) {
  std::shared_ptr<const GpuExport> slab =
      without_lock(link_, transfer, [&] { return link_.device->slab(); });
  if (slab) offer_slab(slab);
  return true;
}

// Registers the host buffer of a copy between host and device, if it is in a shared block.
void DeviceCopies::pin_host(const Transfer& transfer) {
  const std::shared_ptr<cuda::Gpu>& gpu = link_.device->shared_gpu();
  if (transfer.local_device && transfer.import) {
    (void)transfer.import->pin(gpu);
    return;
  }
  const uint8_t* host = transfer.local_device ? transfer.mapped : transfer.local;
  (void)view_pinned(gpu, host, transfer.length, /*ask=*/false);
}

void DeviceCopies::start_engine(Transfer& transfer) {
  uint64_t offset;
  uint64_t size;
  if (transfer.take_chunks(/*from_back=*/false, 1, &offset, &size) == 0) return;
  EngineCopy copy;
  copy.to = transfer.source ? transfer.mapped : transfer.local;
  copy.from = transfer.source ? transfer.local : transfer.mapped;
  copy.size = transfer.length;
  if (transfer.request) copy.after = transfer.request->device.after.event();
  copy.word = link_.device->address_of(transfer.slot->word);
  copy.value = slot_word(transfer.sequence, SlotState::kDone);
  Worker* worker = for_worker(transfer) ? link_.device->worker() : nullptr;
  Result<cuda::Stream> stream = nullptr;
  bool by_worker = false;
  Status status = without_lock(link_, transfer, [&]() -> Status {
    OH_FAULT_POINT("transfer.copy");
    by_worker = worker && worker->copy({reinterpret_cast<uint64_t>(copy.to),
                                        reinterpret_cast<uint64_t>(copy.from), copy.size, copy.word,
                                        copy.value | kSlotByWorker});
    if (by_worker) return {};
    if (!transfer.between_devices()) pin_host(transfer);
    stream = link_.device->take_stream();
    OH_RETURN_IF_ERROR(stream.status());
    OH_RETURN_IF_ERROR(link_.device->enqueue(*stream, copy));
    if (worker) worker->call();
    return {};
  });
  if (!stream.ok()) {
    transfer.fail(status);
    transfer.account(1);
    link_.wake_them = true;
    return;
  }
  transfer.stream = *stream;
  transfer.engine_copies = true;
  transfer.looked = now_ns();
  if (status.ok()) {
    // The stream waits for the earlier work now.
    if (transfer.request) transfer.request->device.after.reset();
    // release: pairs with is_enqueued(). A worker's copy is never published here: the worker may
    // exit before it copies.
    if (transfer.stream) {
      transfer.slot->enqueued.store(transfer.sequence, std::memory_order_release);
    }
  } else {
    // Part of the copy may have been enqueued: that part is over when the stream is idle.
    transfer.fail(status);
    transfer.looked -= kAskForErrors;
  }
}

bool DeviceCopies::is_enqueued(const Transfer& transfer) const {
  if (transfer.engine_copies) return transfer.stream && transfer.failure.ok();
  // acquire: pairs with start_engine() on the peer's side.
  return link_.device &&
         transfer.slot->enqueued.load(std::memory_order_acquire) == transfer.sequence;
}

// Waits for a copy of the local engine by an event, which fires whatever happens to the peer. Waits
// for a copy of the peer's engine on the slot's word: that engine writes it, or this side does when
// its request completes without the copy. Only one side copies and its streams do not wait on the
// word, so the mark that releases the local streams does not affect the peer.
Status DeviceCopies::enqueue_wait(Transfer& transfer, cuda::Stream stream) {
  DeviceLink& device = *link_.device;
  if (transfer.engine_copies) {
    return without_lock(link_, transfer, [&device, stream, copies = transfer.stream] {
      return device.gpu().wait_stream(stream, copies);
    });
  }
  transfer.awaited = true;
  const cuda::DevicePtr word = device.address_of(transfer.slot->word);
  const uint64_t value = slot_passes(transfer.sequence);
  // The transfer may end meanwhile: every later value of the word lets the stream pass, too.
  return link_.without_lock([&] { return device.enqueue_wait(stream, word, value); });
}

// Whether the GPU's worker may make the copy. It only pushes: copies by the sink are rare.
bool DeviceCopies::for_worker(const Transfer& transfer) const {
  if (!link_.device->worker() || !transfer.between_devices() || !transfer.source ||
      !transfer.request) {
    return false;
  }
  // The worker serves no gets: the initiator's explain() could not show it.
  if (transfer.request->serves_peer()) return false;
  const DeviceMemory& ours = transfer.request->device;
  const cuda::Device device = link_.device->gpu().facts().ordinal;
  if (ours.after.pending() || !ours.exported->for_kernels || ours.exported->device != device) {
    return false;
  }
  // Between processes, kernels can use the mapping, too.
  const bool near = static_cast<cuda::Device>(transfer.remote_memory >> kSlotOrdinal) == device;
  const bool mappable = (transfer.remote_memory & kSlotMappable) != 0;
  return link_.selection->by_worker(mappable ? MemoryKind::kDevice : MemoryKind::kDevicePrivate,
                                    near, transfer.length);
}

// Queries the stream: a lost context never writes the word. Other query errors do not mean that the
// copy failed.
bool DeviceCopies::check(Transfer& transfer) {
  transfer.looked = now_ns();
  Result<bool> idle = without_lock(link_, transfer, [&] {
    cuda::Stream stream = transfer.stream ? transfer.stream : link_.device->worker()->stream();
    return link_.device->gpu().is_idle(stream);
  });
  if (link_.device->gpu().is_lost()) return true;
  if (!transfer.engine_copies || !idle.ok() || !*idle || transfer.failure.ok()) return false;
  // Only part of the copy was enqueued, and that part is over.
  transfer.engine_copies = false;
  transfer.account(1);
  return link_.wake_them = true;
}

void DeviceCopies::retire(Active& active) {
  pipe_.retire();
  const Status loss = broken();
  if (loss.ok()) return;
  pipe_.give_up(loss);
  for (Transfer* transfer = active.front(); transfer; transfer = active.next(transfer)) {
    if (!std::exchange(transfer->engine_copies, false)) continue;
    transfer->fail(loss);
    transfer->account(1);
  }
}

}  // namespace oh
