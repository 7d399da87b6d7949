// SPDX-License-Identifier: Apache-2.0
#include "link/memory_exchange.h"

#include <algorithm>
#include <utility>

#include "base/log.h"
#include "link/link.h"
#include "platform/os/message_socket.h"

namespace oh {
namespace {
constexpr size_t kFdsAtOnce = 8;
constexpr size_t kMaxRecord = 60000;  // bytes of a control message
}  // namespace

MemoryExchange::MemoryExchange(Link& link, Connection* connection, const Id& process,
                               Listener listener)
    : link_(link),
      connection_(connection),
      process_(process),
      listener_(std::move(listener)),
      heap_(SharedHeap::instance()) {}

uint32_t MemoryExchange::block_of(const void* data, uint64_t size) {
  if (!connection_) return 0;  // within the process addresses are enough
  std::shared_ptr<SharedBlock> block = heap_.find(data, size);
  if (!block || !block->fd.valid()) return 0;
  // If the connection is gone, its handler reports that. If descriptors are short, the next message
  // from the block tries again.
  if (!exported_.count(block->number) && !send_block(block->number).ok()) return 0;
  return block->number;
}

bool MemoryExchange::publish(const std::shared_ptr<const GpuExport>& exported) {
  if (!connection_) return false;
  const auto handed = exported_.find(exported->number);
  if (handed != exported_.end()) return handed->second.reached;
  // An export that was retired meanwhile must not be sent: nothing would retire it again. The
  // peer's request for it will fail.
  if (!GpuExports::instance().find(exported->number)) return false;
  exported_.try_emplace(exported->number);
  (void)send_export(*exported).ok();
  return false;
}

// Sends the record first, then its descriptors, a few at a time. No chunks: it cannot be mapped.
Status MemoryExchange::send_export(const GpuExport& exported) {
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
           link_.name.c_str());
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

Status MemoryExchange::on_export(ByteView payload, std::vector<UniqueFd> fds, bool first) {
  Reader reader(payload);
  uint32_t number = reader.u32();
  if (first) {
    arriving_ = std::make_unique<Arriving>();
    arriving_->number = number;
    arriving_->expected = reader.u32();
    if (!reader.at_end()) {
      OH_ASSIGN_OR_RETURN(arriving_->record, ExportRecord::decode(reader));
    }
  }
  // Each message has as many as go at once, or none where the kernel has dropped them.
  const size_t due =
      arriving_ ? std::min(kFdsAtOnce, arriving_->expected - arriving_->fds.size()) : 0;
  bool fits = arriving_ && arriving_->number == number && reader.at_end() &&
              arriving_->expected <= arriving_->record.chunks.size() &&
              (fds.empty() || fds.size() == due) && (number & GpuExports::kNumberBit) != 0;
  if (!fits) return error(OH_ERR_PROTOCOL, "an export of %zu bytes makes no sense", payload.size());
  arriving_->lost = arriving_->lost || fds.size() < due;
  fds.resize(due);
  for (UniqueFd& fd : fds) arriving_->fds.push_back(std::move(fd));
  if (arriving_->fds.size() < arriving_->expected) return {};
  std::unique_ptr<Arriving> whole = std::move(arriving_);
  const bool gone = whole->record.chunks.empty();
  Result<std::shared_ptr<ImportedBlock>> opened =
      error(OH_ERR_NOT_VIABLE, "this endpoint has no GPU");
  if (whole->lost) {
    opened = error(OH_ERR_NO_RESOURCE, "%s", MessageSocket::kWhyLost);
  } else if (link_.device && !gone) {
    opened = GpuImports::instance().open(link_.device->shared_gpu(), process_, number,
                                         whole->record, std::move(whole->fds));
  }
  if (!opened.ok() && !gone) {
    OH_LOG(kInfo, "cannot map device memory %u of %s: %s; its transfers take another path", number,
           link_.name.c_str(), opened.status().text().c_str());
  }
  import(number, opened.ok() ? std::move(*opened) : nullptr);
  return {};
}

// Stores a block that the peer has handed over; null: it cannot be mapped.
void MemoryExchange::import(uint32_t number, std::shared_ptr<ImportedBlock> block) {
  std::shared_ptr<ImportedBlock> unused;  // released without the lock
  std::shared_ptr<ImportedBlock> gone;    // likewise
  std::shared_ptr<ImportedBlock> added;
  bool full = false;
  {
    LinkGuard guard(link_);
    full = block && link_.imports.full();
    // Once the link is closed, nothing would release the block.
    if (full || closed_) unused = std::exchange(block, nullptr);
    added = block;
    if (!closed_) gone = link_.imports.add(number, std::move(block));
    link_.wake_me = true;
  }
  if (full) {
    OH_LOG(kWarn, "%zu blocks of %s are mapped already: transfers of block %u take another path",
           Imports::kMost, link_.name.c_str(), number);
  }
  listener_.mapped(added);
  if (unused || gone) {
    unused.reset();
    gone.reset();
    GpuImports::instance().close_unused();
  }
}

// With the link's lock held, so that retire_block() sends its message after this one.
Status MemoryExchange::send_block(uint32_t number) {
  if (number & GpuExports::kNumberBit) {
    std::shared_ptr<const GpuExport> exported = GpuExports::instance().find(number);
    if (exported) exported_.try_emplace(number);
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
  if (block && block->fd.valid()) fds.push_back(block->fd.get());
  OH_RETURN_IF_ERROR(connection_->send_control(Control::kBlock, bytes, std::move(fds)));
  if (block) exported_.try_emplace(number);
  return {};
}

Status MemoryExchange::on_block(ByteView payload, std::vector<UniqueFd> fds) {
  Reader reader(payload);
  uint32_t number = reader.u32();
  uint64_t base = reader.u64();
  uint64_t size = reader.u64();
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a block of %zu bytes", payload.size());
  std::shared_ptr<ImportedBlock> block;
  if (!fds.empty()) {
    Result<std::shared_ptr<ImportedBlock>> opened =
        ImportCache::instance().open(process_, number, base, size, fds.front().get());
    if (opened.ok()) {
      block = std::move(*opened);
    } else {
      OH_LOG(kWarn, "cannot map block %u of %s: %s; its transfers take another path", number,
             link_.name.c_str(), opened.status().text().c_str());
    }
  }
  import(number, std::move(block));
  return {};
}

void MemoryExchange::ask_for_block(uint32_t number) {
  {
    LinkGuard guard(link_);
    if (link_.imports.find(number)) return;
    link_.imports.forget_failure(number);
  }
  want_block(number);
}

// A failure means that the connection is gone, which its handler reports.
void MemoryExchange::want_block(uint32_t number) {
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(number);
  (void)connection_->send_control(Control::kBlockWanted, bytes).ok();
}

std::shared_ptr<ImportedBlock> MemoryExchange::imported(uint32_t number, bool* failed) {
  LinkGuard guard(link_);
  *failed = link_.imports.failed(number);
  return link_.imports.find(number);
}

void MemoryExchange::retire_block(uint32_t number) {
  {
    LinkGuard guard(link_);
    if (exported_.erase(number) == 0) return;
  }
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(number);
  (void)connection_->send_control(Control::kBlockRetired, bytes).ok();
}

void MemoryExchange::tell_reached(uint32_t number) {
  if (!connection_) return;
  Bytes bytes;
  Writer writer(bytes);
  writer.u32(number);
  (void)connection_->send_control(Control::kBlockReached, bytes).ok();
}

Imports MemoryExchange::close() {
  LinkGuard guard(link_);
  closed_ = true;
  return std::exchange(link_.imports, {});
}

Status MemoryExchange::on_block_wanted(ByteView payload) {
  Reader reader(payload);
  const uint32_t number = reader.u32();
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a BlockWanted of %zu bytes", payload.size());
  LinkGuard guard(link_);
  return send_block(number);
}

Status MemoryExchange::on_block_retired(ByteView payload) {
  Reader reader(payload);
  const uint32_t number = reader.u32();
  if (!reader.at_end())
    return error(OH_ERR_PROTOCOL, "a BlockRetired of %zu bytes", payload.size());
  std::shared_ptr<ImportedBlock> retired;  // released without the lock
  {
    LinkGuard guard(link_);
    retired = link_.imports.retire(number);
  }
  listener_.retired(number);
  retired.reset();
  GpuImports::instance().close_unused();
  return {};
}

// The block may have been retired meanwhile.
Status MemoryExchange::on_block_reached(ByteView payload) {
  Reader reader(payload);
  const uint32_t number = reader.u32();
  if (!reader.at_end()) {
    return error(OH_ERR_PROTOCOL, "a BlockReached of %zu bytes", payload.size());
  }
  LinkGuard guard(link_);
  const auto handed = exported_.find(number);
  if (handed != exported_.end()) handed->second.reached = true;
  return {};
}

}  // namespace oh
