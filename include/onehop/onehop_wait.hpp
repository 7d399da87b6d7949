// SPDX-License-Identifier: Apache-2.0
//
// Waits for several requests, probes, and requests that end once something can be taken, for
// onehop.hpp. Include onehop.hpp. The contract is in wait.h.
#ifndef ONEHOP_ONEHOP_WAIT_HPP_
#define ONEHOP_ONEHOP_WAIT_HPP_

#include "onehop/onehop.hpp"

namespace onehop {

namespace detail {
inline std::vector<oh_request*> handles(const std::vector<Request>& requests) {
  std::vector<oh_request*> all;
  for (const Request& request : requests) all.push_back(request.get());
  return all;
}
}  // namespace detail

// Waits until all have ended. Throws the error of the first in the vector that failed.
inline void wait_all(const std::vector<Request>& requests, Timeout timeout = kDefaultTimeout) {
  std::vector<oh_request*> handles = detail::handles(requests);
  check(oh_request_wait_all(handles.data(), handles.size(), timeout.count()));
}
// The index of the first that has ended, with or without an error; nothing at the deadline.
inline std::optional<size_t> wait_any(const std::vector<Request>& requests,
                                      Timeout timeout = kDefaultTimeout) {
  std::vector<oh_request*> handles = detail::handles(requests);
  size_t index = 0;
  oh_status status = oh_request_poll_any(handles.data(), handles.size(), timeout.count(), &index);
  if (status == OH_IN_PROGRESS) return std::nullopt;
  check(status);
  return index;
}

inline Message Peer::probe(uint64_t tag, Timeout timeout) {
  auto message = detail::sized<Message>();
  check(oh_peer_probe(get(), tag, timeout.count(), &message));
  return message;
}
inline Request Peer::message_ready(uint64_t tag) {
  oh_request* request = nullptr;
  check(oh_peer_message_ready(get(), tag, &request));
  return Request(request);
}
inline Request Peer::signal_ready(uint32_t slot, uint64_t count) {
  oh_request* request = nullptr;
  check(oh_peer_signal_ready(get(), slot, count, &request));
  return Request(request);
}

}  // namespace onehop

#endif  // ONEHOP_ONEHOP_WAIT_HPP_
