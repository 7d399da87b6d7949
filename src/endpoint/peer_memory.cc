// SPDX-License-Identifier: Apache-2.0
//
// Memory that peers hand to each other on the control socket: shared blocks of host memory, and
// exports of device memory.
#include <utility>

#include "base/log.h"
#include "endpoint/peer.h"

namespace oh {
namespace {
constexpr size_t kFdsAtOnce = 8;
constexpr size_t kMaxRecord = 60000;  // bytes of a control message
}  // namespace

uint32_t Peer::block_of(const void* data, uint64_t size) {
  if (!connection_) return 0;  // within the process addresses are enough
  std::shared_ptr<SharedBlock> block = heap_.find(data, size);
  if (!block) return 0;
  // A failure means that the connection is gone, which its handler reports.
  if (!exported_.count(block->number)) (void)send_block(block->number).ok();
  exported_.insert(block->number);
  return block->number;
}

void Peer::publish(const std::shared_ptr<const GpuExport>& exported) {
  if (!connection_ || exported_.count(exported->number) != 0) return;
  // One that was taken back meanwhile would never be again. The peer asks for it in vain.
  if (!GpuExports::instance().find(exported->number)) return;
  exported_.insert(exported->number);
  (void)send_export(*exported).ok();
}

// The record first, then its descriptors, a few at a time. Without chunks: it cannot be mapped.
Status Peer::send_export(const GpuExport& exported) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(exported.number);
  size_t count = exported.mappable() ? exported.fds.size() : 0;
  writer.u32(static_cast<uint32_t>(count));
  size_t head = bytes.size();
  if (exported.mappable()) exported.record.encode(writer);
  if (bytes.size() > kMaxRecord) {
    OH_LOG(kWarn,
           "%llu bytes of device memory in %zu pieces are too many to be handed to %s at once",
           static_cast<unsigned long long>(exported.record.length), exported.record.chunks.size(),
           pair_.name.c_str());
    bytes.resize(head);
    count = 0;
  }
  size_t sent = 0;
  do {
    std::vector<int> fds;
    for (; sent < count && fds.size() < kFdsAtOnce; ++sent) fds.push_back(exported.fds[sent].get());
    bool first = sent <= kFdsAtOnce;
    if (!first) bytes.resize(sizeof(uint32_t));
    OH_RETURN_IF_ERROR(connection_->send_control(first ? Control::kExport : Control::kExportMore,
                                                 bytes, std::move(fds)));
  } while (sent < count);
  return {};
}

Status Peer::on_export(ByteView payload, std::vector<UniqueFd> fds, bool first) {
  Reader reader(payload);
  uint32_t number = reader.u32();
  if (first) {
    arriving_ = std::make_unique<ArrivingExport>();
    arriving_->number = number;
    arriving_->expected = reader.u32();
    if (!reader.at_end()) {
      OH_ASSIGN_OR_RETURN(arriving_->record, ExportRecord::decode(reader));
    }
  }
  bool fits = arriving_ && arriving_->number == number && reader.at_end() &&
              arriving_->expected <= arriving_->record.chunks.size() &&
              fds.size() <= arriving_->expected - arriving_->fds.size() &&
              (number & GpuExports::kNumberBit) != 0;
  if (!fits) return error(OH_ERR_PROTOCOL, "an export of %zu bytes makes no sense", payload.size());
  for (UniqueFd& fd : fds) arriving_->fds.push_back(std::move(fd));
  if (arriving_->fds.size() < arriving_->expected) return {};
  std::unique_ptr<ArrivingExport> whole = std::move(arriving_);
  if (whole->record.chunks.empty()) return import(number, nullptr);
  Status why = error(OH_ERR_NOT_VIABLE, "this endpoint has no GPU");
  if (pair_.device) {
    Result<std::shared_ptr<ImportedBlock>> opened =
        GpuImports::instance().open(pair_.device->shared_gpu(), identity_.process, number,
                                    whole->record, std::move(whole->fds));
    if (opened.ok()) return import(number, std::move(*opened));
    why = opened.status();
  }
  OH_LOG(kInfo, "cannot map device memory %u of %s: %s; its transfers take another path", number,
         pair_.name.c_str(), why.text().c_str());
  return import(number, nullptr);
}

// What came of a block that the peer has handed over; null: it cannot be mapped.
Status Peer::import(uint32_t number, std::shared_ptr<ImportedBlock> block) {
  std::shared_ptr<ImportedBlock> gone;  // let go of without the lock
  std::shared_ptr<ImportedBlock> added = block;
  {
    PairGuard guard(pair_);
    if (pair_.imports.full()) {
      return error(OH_ERR_PROTOCOL, "it handed over more than %zu blocks", Imports::kMost);
    }
    // Once the link is closed nothing releases the block any more.
    bool closed = state_.load(std::memory_order_relaxed) == State::kClosed;
    gone = closed ? std::move(block) : pair_.imports.add(number, std::move(block));
    pair_.wake_me = true;
    if (closed) added.reset();
  }
  stream_->add_import(added);
  if (std::exchange(gone, nullptr)) GpuImports::instance().close_unused();
  return {};
}

// With the pair's lock held: that it is retired is said after this.
Status Peer::send_block(uint32_t number) {
  if (number & GpuExports::kNumberBit) {
    std::shared_ptr<const GpuExport> exported = GpuExports::instance().find(number);
    if (exported) exported_.insert(number);
    GpuExport none;
    none.number = number;
    none.why_not = "gone";
    return send_export(exported ? *exported : none);
  }
  std::shared_ptr<SharedBlock> block = heap_.find(number);
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(number);
  writer.u64(block ? block->base() : 0);
  writer.u64(block ? block->size() : 0);
  std::vector<int> fds;
  if (block) {
    exported_.insert(number);
    fds.push_back(block->fd.get());
  }
  return connection_->send_control(Control::kBlock, bytes, std::move(fds));
}

Status Peer::on_block(ByteView payload, std::vector<UniqueFd> fds) {
  Reader reader(payload);
  uint32_t number = reader.u32();
  uint64_t base = reader.u64();
  uint64_t size = reader.u64();
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a block of %zu bytes", payload.size());
  std::shared_ptr<ImportedBlock> block;
  if (!fds.empty()) {
    Result<std::shared_ptr<ImportedBlock>> opened =
        ImportCache::instance().open(identity_.process, number, base, size, fds.front().get());
    if (opened.ok()) {
      block = std::move(*opened);
    } else {
      OH_LOG(kWarn, "cannot map block %u of %s: %s; its transfers take another path", number,
             pair_.name.c_str(), opened.status().text().c_str());
    }
  }
  return import(number, std::move(block));
}

Status Peer::ask_for_block(uint32_t number) {
  OH_RETURN_IF_ERROR(usable());
  {
    PairGuard guard(pair_);
    if (pair_.imports.find(number)) return {};
    pair_.imports.forget_failure(number);
  }
  want_block(number);
  return {};
}

// A failure means that the connection is gone, which its handler reports.
void Peer::want_block(uint32_t number) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(number);
  (void)connection_->send_control(Control::kBlockWanted, bytes).ok();
}

std::shared_ptr<ImportedBlock> Peer::imported(uint32_t number, bool* failed) {
  PairGuard guard(pair_);
  *failed = pair_.imports.failed(number);
  return pair_.imports.find(number);
}

void Peer::attach_key(const RemoteTarget& target) {
  PairGuard guard(pair_);
  if (!rma_ || target.on_device || !check_open().ok()) return;
  rma_->keys().attach(target.index, target.version);
  update_busy();
}

void Peer::detach_key(const RemoteTarget& target) {
  PairGuard guard(pair_);
  if (!rma_) return;
  rma_->keys().detach(target.version);
  update_busy();
}

// Maps a region whose key the other side wants. The lock is let go: pinning memory takes its time.
bool Peer::map_for_keys() {
  std::shared_ptr<RegionRecord> region = rma_->keys().next_to_map();
  if (!region) return false;
  Result<std::shared_ptr<UcxMapping>> mapping =
      pair_.without_lock([&] { return map_region(*region, pair_.ucx->worker().context()); });
  const bool valid = owner_.regions().find(region->index, region->version) != nullptr;
  rma_->keys().mapped(region, valid, std::move(mapping));
  return true;
}

void Peer::retire_block(uint32_t number) {
  if (!connection_) return stream_->forget_within(number);
  {
    PairGuard guard(pair_);
    if (exported_.erase(number) == 0) return;
  }
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(number);
  (void)connection_->send_control(Control::kBlockRetired, bytes).ok();
}

}  // namespace oh
