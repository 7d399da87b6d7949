// SPDX-License-Identifier: Apache-2.0
#include "device/copy_ticket.h"

#include <utility>

namespace oh {

Result<CopyTicket> CopyTicket::open(cuda::Gpu& gpu) {
  CopyTicket ticket;
  OH_ASSIGN_OR_RETURN(cuda::Stream stream, gpu.take_stream());
  Result<cuda::DoneWord> word = gpu.take_word();
  if (!word.ok()) {
    gpu.give_stream(stream);
    return word.status();
  }
  ticket.gpu_ = &gpu;
  ticket.stream_ = stream;
  ticket.word_ = *word;
  return ticket;
}

CopyTicket::~CopyTicket() {
  if (!is_open() || !(is_done() || gpu_->is_lost())) return;
  gpu_->give_stream(stream_);
  gpu_->give_word(word_);
}

void CopyTicket::swap(CopyTicket& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(stream_, other.stream_);
  std::swap(word_, other.word_);
  std::swap(value_, other.value_);
  std::swap(asked_, other.asked_);
}

Status CopyTicket::copy(void* to, const void* from, uint64_t size, uint64_t value) {
  return gpu_->copy(stream_, reinterpret_cast<cuda::DevicePtr>(to),
                    reinterpret_cast<cuda::DevicePtr>(from), size, nullptr,
                    value != 0 ? word_.device : 0, value);
}

Result<bool> CopyTicket::check() {
  Result<bool> idle = gpu_->is_idle(stream_);
  asked_ = now_ns();
  if (gpu_->is_lost()) return gpu_->loss();
  // Other query errors do not mean that the copy failed.
  return idle.ok() && *idle;
}

Status CopyTicket::wait(uint64_t value) {
  while (seen() < value) {
    cpu_relax();
    if (now_ns() - asked_ < kAskForErrors) continue;
    OH_RETURN_IF_ERROR(check().status());
  }
  return {};
}

Status CopyTicket::end(const Status& enqueued) {
  if (enqueued.ok()) return wait();
  (void)drain(Deadline::never());
  return enqueued;
}

bool CopyTicket::drain(Deadline deadline) {
  if (!gpu_->wait_idle(stream_, deadline)) return false;
  write_off();
  return true;
}

}  // namespace oh
