// SPDX-License-Identifier: Apache-2.0
#include "lane/proxy_memory.h"

#include <sched.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "kernels/image.h"
#include "onehop/detail/host_atomics.h"

namespace oh {

using kernels::kProxyLanes;
using kernels::kProxySmall;
using kernels::kTickets;
using onehop::detail::HostAtomics;

namespace {
constexpr size_t kPayloadAt = (sizeof(kernels::ProxyPage) + 4095) & ~size_t{4095};
constexpr size_t kPayload = kTickets * kProxySmall;  // bytes a queue
constexpr size_t kSize = kPayloadAt + kProxyLanes * kPayload;
constexpr int64_t kEndTime = 2 * kSecond;
}  // namespace

Result<std::shared_ptr<ProxyMemory>> ProxyMemory::create(std::shared_ptr<cuda::Gpu> gpu) {
  std::shared_ptr<ProxyMemory> memory(new ProxyMemory(std::move(gpu)));
  OH_RETURN_IF_ERROR(memory->start());
  return memory;
}

Status ProxyMemory::start() {
  Result<cuda::Function> kernel = gpu_->kernels().find(kernel_image(), kernels::kProxyKernel);
  if (!kernel.ok()) {
    return error(OH_ERR_NOT_VIABLE, "the kernels of the stream domain are not there: %s",
                 kernel.status().text().c_str());
  }
  kernel_ = *kernel;
  OH_ASSIGN_OR_RETURN(memory_, Mapping::anonymous(kSize));
  OH_ASSIGN_OR_RETURN(pinned_, cuda::Pinned::of(gpu_, memory_.data(), kSize));
  OH_ASSIGN_OR_RETURN(cursors_, gpu_->allocate(device_bytes()));
  return begin_to_open();
}

// The first launch of a kernel and the first use of an engine may wait for running kernels. A
// kernel that waits for the host would then deadlock, so both are done here.
Status ProxyMemory::begin_to_open() {
  OH_ASSIGN_OR_RETURN(opening_, gpu_->take_stream());
  auto nothing = std::make_unique<kernels::ProxyArgs>();
  OH_RETURN_IF_ERROR(gpu_->zero(opening_, cursors_, device_bytes()));
  OH_RETURN_IF_ERROR(
      gpu_->kernels().launch_remote(opening_, kernel_, {1, kernels::kProxyThreads}, nothing.get()));
  OH_ASSIGN_OR_RETURN(cuda::DoneWord word, gpu_->take_word());
  gpu_->give_word(word);
  return {};
}

Result<bool> ProxyMemory::is_open() {
  if (!opening_) return true;
  OH_ASSIGN_OR_RETURN(bool idle, gpu_->is_idle(opening_));
  OH_RETURN_IF_ERROR(gpu_->loss());
  if (idle) gpu_->give_stream(std::exchange(opening_, nullptr));
  return idle;
}

ProxyMemory::~ProxyMemory() {
  bool all = true;
  if (pinned_) {
    abort();
    const Deadline deadline = Deadline::after(kEndTime);
    while (!(all = all_through() || gpu_->is_lost()) && !deadline.passed()) sched_yield();
    if (opening_) all = gpu_->wait_idle(opening_, deadline) && all;
    if (opening_ && all) gpu_->give_stream(opening_);
  }
  {
    MutexLock lock(mutex_);
    for (Branch& branch : branches_) {
      gpu_->give_event(branch.event);
      if (all) gpu_->give_stream(branch.stream);
    }
  }
  if (all) {
    if (cursors_) gpu_->free(cursors_);
    return;
  }
  OH_LOG(kWarn, "kernels on %s still wait on a link that is closed: %zu bytes are kept for them",
         gpu_->facts().name.c_str(), kSize);
  new std::shared_ptr<cuda::Pinned>(std::move(pinned_));
  new Mapping(std::move(memory_));
}

const kernels::Ticket* ProxyMemory::ticket(uint32_t index, uint64_t number) const {
  const kernels::Ticket* ticket = &queue(index).tickets[number % kTickets];
  // acquire: the ticket's fields and payload are visible; pairs with run_proxy().
  return HostAtomics::load_acquire(&ticket->number) == number + 1 ? ticket : nullptr;
}

bool ProxyMemory::take(uint32_t index, uint64_t number) {
  kernels::TicketQueue& tickets = queue(index);
  const uint64_t place = number % kTickets;
  HostAtomics::store_relaxed(&tickets.answers[place].taken, number + 1);
  // Pairs with await_answer(): either the kernel sees the ticket taken, or the host sees it given
  // up.
  HostAtomics::full_fence();
  return HostAtomics::load_relaxed(&tickets.given_up[place]) != number + 1;
}

void ProxyMemory::answer(uint32_t index, uint64_t number, uint64_t fault, uint64_t bytes) {
  kernels::TicketAnswer* answer = &queue(index).answers[number % kTickets];
  HostAtomics::store_relaxed(&answer->bytes, bytes);
  HostAtomics::store_relaxed(&answer->fault, fault);
  // release: publishes the other fields and the received bytes; pairs with await_answer().
  HostAtomics::store_release(&answer->number, number + 1);
}

uint8_t* ProxyMemory::payload(uint32_t index, uint64_t number) const {
  return memory_.data() + kPayloadAt + index * kPayload + number % kTickets * kProxySmall;
}

kernels::ProxyOp ProxyMemory::op(uint32_t index) const {
  kernels::ProxyOp op{};
  op.page = pinned_->device(page());
  op.queue = pinned_->device(&queue(index));
  op.payload = index < kProxyLanes ? pinned_->device(payload(index, 0)) : 0;
  op.cursor = cursors_ + index * sizeof(kernels::TicketCursor);
  op.index = index;
  return op;
}

// Relaxed: the word publishes no other data. Kernels poll it in ProxyPatience.
void ProxyMemory::abort() { HostAtomics::store_relaxed(&page()->abort, 1); }

Result<ProxyMemory::Branch> ProxyMemory::take_branch() {
  MutexLock lock(mutex_);
  for (Branch& branch : branches_) {
    if (branch.in_use) continue;
    Result<bool> complete = gpu_->is_complete(branch.event);
    if (!complete.ok() || !*complete) continue;
    branch.in_use = true;
    return branch;
  }
  Branch made{.stream = nullptr, .event = nullptr, .in_use = true};
  OH_ASSIGN_OR_RETURN(made.stream, gpu_->take_stream());
  Result<cuda::Event> event = gpu_->take_event();
  if (!event.ok()) {
    gpu_->give_stream(made.stream);
    return event.status();
  }
  made.event = *event;
  branches_.push_back(made);
  return made;
}

Result<ProxyMemory::Branch> ProxyMemory::fork(cuda::Stream stream, bool capturing) {
  OH_ASSIGN_OR_RETURN(Branch branch, take_branch());
  Status status = gpu_->record(branch.event, stream);
  if (status.ok()) status = gpu_->wait_event(branch.stream, branch.event);
  if (status.ok()) return branch;
  (void)join(branch, stream, capturing).ok();
  return status;
}

Status ProxyMemory::join(const Branch& branch, cuda::Stream stream, bool capturing) {
  Status status = gpu_->record(branch.event, branch.stream);
  if (status.ok()) status = gpu_->wait_event(stream, branch.event);
  MutexLock lock(mutex_);
  for (Branch& one : branches_) {
    if (one.stream == branch.stream) one.in_use = capturing;
  }
  return status;
}

bool ProxyMemory::all_through() const {
  return apart_.are_over() && std::all_of(std::begin(turns_), std::end(turns_),
                                          [](const LaunchTurn& turn) { return turn.is_through(); });
}

}  // namespace oh
