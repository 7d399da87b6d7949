// SPDX-License-Identifier: Apache-2.0
//
// Default implementations of Path, and helpers that the paths share.
#include "path/path.h"

#include <utility>

#include "device/batch_plan.h"

namespace oh {

void end_request(Link& link, Operation& operation, Status status) {
  Request* request = std::exchange(operation.request, nullptr);
  if (!request) return;
  request->path = operation.taken == OH_PATH_NONE ? link.path : operation.taken;
  if (status.ok()) request->nbytes = request->size;
  link.finish(*request, std::move(status));
}

void count_moved(Link& link, const Operation& operation) {
  const Request* request = operation.request;
  if (!request || request->internal || !operation.moves()) return;
  count_moved(link, operation.kind == OpKind::kPut,
              operation.taken == OH_PATH_NONE ? link.path : operation.taken,
              operation.whole ? operation.missing : request->size);
}

bool Operation::piece_ended(Request& piece) {
  std::erase(under_way, &piece);
  taken = piece.path;
  const bool in_doubt = piece.status.code() == OH_ERR_IN_DOUBT;
  if (!piece.status.ok() && (failure.ok() || in_doubt)) failure = piece.status;
  if (request && !piece.doubts.empty()) {
    request->doubts.insert(request->doubts.end(), piece.doubts.begin(), piece.doubts.end());
    request->doubt_peer = piece.doubt_peer;
  }
  return under_way.empty() && (block == blocks.size() || !failure.ok());
}

void acknowledge(Link& link, uint64_t op, oh_status status) {
  Frame frame;
  frame.type = FrameType::kAck;
  frame.op = op;
  frame.aux = static_cast<uint32_t>(status);
  link.send(frame);
}

void reject_message(Link& link, uint64_t op, oh_status why, uint64_t room) {
  Frame frame;
  frame.type = FrameType::kReject;
  frame.op = op;
  frame.aux = static_cast<uint32_t>(why);
  frame.length = room;
  link.send(frame);
}

std::unique_ptr<BatchPlan> Immediate::plan(const Movement&) { return nullptr; }

bool Path::cancel(Operation& operation, const Status& status, bool) {
  events_.moved(operation, status);
  return true;
}

Status Path::on_answer(Operation&, const Frame& frame) {
  if (frame.type != FrameType::kData) return {};
  return error(OH_ERR_PROTOCOL, "%s answered a get with unrequested bytes", link_.name.c_str());
}

Status Path::on_frame(const Frame& frame) {
  return error(OH_ERR_PROTOCOL, "%s sent a frame of type %u, which its path does not take",
               link_.name.c_str(), static_cast<unsigned>(frame.type));
}

}  // namespace oh
