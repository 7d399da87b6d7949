// SPDX-License-Identifier: Apache-2.0
//
// Messages between endpoints, without the C API.
#pragma once

#include "endpoint/endpoint.h"
#include "unit/support.h"

namespace unit {

inline void prepare(oh::Request* request, oh::OpKind kind, oh::Endpoint& endpoint, uint8_t* data,
                    size_t size, uint64_t tag) {
  request->kind = kind;
  request->endpoint = &endpoint;
  request->data = data;
  request->size = size;
  request->tag = tag;
}

inline oh::Status send(oh::Endpoint& endpoint, oh::Peer& peer, oh::Bytes bytes, uint64_t tag,
                       oh::Deadline deadline) {
  oh::Request request;
  prepare(&request, oh::OpKind::kSend, endpoint, bytes.data(), bytes.size(), tag);
  return endpoint.requests().send(peer, &request, deadline);
}

// Receives a message and expects exactly these bytes.
inline oh::Status expect(oh::Endpoint& endpoint, oh::Peer& peer, const oh::Bytes& bytes,
                         uint64_t tag, oh::Deadline deadline) {
  oh::Bytes room(bytes.size() + 1);
  oh::Request request;
  prepare(&request, oh::OpKind::kRecv, endpoint, room.data(), room.size(), tag);
  OH_RETURN_IF_ERROR(peer.operations().messages().post_recv(&request));
  OH_RETURN_IF_ERROR(endpoint.requests().wait(&request, deadline, &peer));
  EXPECT_EQ(request.nbytes, bytes.size());
  room.resize(request.nbytes);
  EXPECT_TRUE(room == bytes) << "other bytes arrived than were sent";
  return {};
}

}  // namespace unit
