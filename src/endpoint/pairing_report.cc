// SPDX-License-Identifier: Apache-2.0
//
// Encoding of the greetings and reports that two sides exchange.
#include <algorithm>

#include "base/text.h"
#include "endpoint/pairing.h"

namespace oh {
namespace {
constexpr size_t kMaxText = 1024;
constexpr size_t kMaxUcxAddress = 16 * 1024;
}  // namespace

Bytes encode_greeting(const PeerIdentity& identity) {
  Bytes bytes;
  Writer writer(bytes);
  writer.raw(identity.process);
  writer.raw(identity.endpoint);
  writer.text(identity.label);
  return bytes;
}

Result<PeerIdentity> decode_greeting(ByteView bytes) {
  Reader reader(bytes);
  PeerIdentity identity;
  for (Id* id : {&identity.process, &identity.endpoint}) {
    ByteView raw = reader.raw(id->size());
    std::copy(raw.begin(), raw.end(), id->begin());
  }
  identity.label = printable(reader.text(kMaxText), kMaxText);
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a greeting of %zu bytes", bytes.size());
  return identity;
}

Bytes encode_report(const SideReport& report) {
  Bytes bytes;
  Writer writer(bytes);
  writer.raw(report.purpose.communicator);
  writer.u32(report.purpose.from_rank);
  writer.u32(report.purpose.to_rank);
  writer.u64(report.limits.max_inline);
  writer.u64(report.limits.eager_max);
  writer.u64(report.limits.eager_credit);
  writer.u64(report.limits.ucx_eager_credit);
  writer.u32(report.limits.max_pending);
  writer.u64(report.asked_inline);
  writer.u64(report.nonce_address);
  writer.u8(report.segment);
  writer.u8(report.reaches);
  writer.u8(report.cma_allowed);
  writer.u8(report.cuda_ipc_allowed);
  writer.text(cut_text(report.why_no_segment, kMaxText));
  writer.u8(report.ucx_allowed);
  writer.u8(report.ucx);
  writer.bytes(report.way.address);
  writer.u32(report.way.link);
  writer.u32(report.way.key);
  writer.u64(report.way.max_header);
  writer.text(cut_text(report.why_no_ucx, kMaxText));
  writer.text(report.gpu);
  return bytes;
}

Result<SideReport> decode_report(ByteView bytes) {
  Reader reader(bytes);
  SideReport report;
  ByteView communicator = reader.raw(report.purpose.communicator.size());
  std::copy(communicator.begin(), communicator.end(), report.purpose.communicator.begin());
  report.purpose.from_rank = reader.u32();
  report.purpose.to_rank = reader.u32();
  report.limits.max_inline = reader.u64();
  report.limits.eager_max = reader.u64();
  report.limits.eager_credit = reader.u64();
  report.limits.ucx_eager_credit = reader.u64();
  report.limits.max_pending = reader.u32();
  report.asked_inline = reader.u64();
  report.nonce_address = reader.u64();
  report.segment = reader.u8() != 0;
  report.reaches = reader.u8() != 0;
  report.cma_allowed = reader.u8() != 0;
  report.cuda_ipc_allowed = reader.u8() != 0;
  report.why_no_segment = printable(reader.text(kMaxText), kMaxText);
  report.ucx_allowed = reader.u8() != 0;
  report.ucx = reader.u8() != 0;
  ByteView address = reader.bytes(kMaxUcxAddress);
  report.way.address.assign(address.begin(), address.end());
  report.way.link = reader.u32();
  report.way.key = reader.u32();
  report.way.max_header = reader.u64();
  report.why_no_ucx = printable(reader.text(kMaxText), kMaxText);
  report.gpu = printable(reader.text(kMaxText), kMaxText);
  if (!reader.at_end()) return error(OH_ERR_PROTOCOL, "a report of %zu bytes", bytes.size());
  return report;
}

}  // namespace oh
