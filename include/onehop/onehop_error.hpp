// SPDX-License-Identifier: Apache-2.0
//
// The exceptions of onehop.hpp. The class says what to rebuild: operation, link, or endpoint.
#ifndef ONEHOP_ONEHOP_ERROR_HPP_
#define ONEHOP_ONEHOP_ERROR_HPP_

#include <stdexcept>
#include <string>

#include "onehop/onehop.h"

namespace onehop {

class Error : public std::runtime_error {
 public:
  Error(oh_status status, const std::string& text)
      : std::runtime_error(std::string(oh_status_name(status)) + ": " + text), status_(status) {}
  oh_status status() const { return status_; }
  oh_scope scope() const { return oh_status_scope(status_); }

 private:
  oh_status status_;
};
// Only the operation failed.
class OperationError : public Error {
  using Error::Error;
};
class TimeoutError : public OperationError {
  using OperationError::OperationError;
};
// The link to the peer is lost: connect again.
class LinkError : public Error {
  using Error::Error;
};
class PeerLost : public LinkError {
  using LinkError::LinkError;
};
// The endpoint is unusable: create another.
class EndpointError : public Error {
  using Error::Error;
};

[[noreturn]] inline void raise(oh_status status) {
  std::string text = oh_error_text();
  if (status == OH_ERR_TIMEOUT) throw TimeoutError(status, text);
  if (status == OH_ERR_PEER_LOST) throw PeerLost(status, text);
  switch (oh_status_scope(status)) {
    case OH_SCOPE_OPERATION:
      throw OperationError(status, text);
    case OH_SCOPE_LINK:
      throw LinkError(status, text);
    case OH_SCOPE_ENDPOINT:
      throw EndpointError(status, text);
    case OH_SCOPE_NONE:
      break;
  }
  throw Error(status, text);
}
inline void check(oh_status status) {
  if (status != OH_OK) raise(status);
}

}  // namespace onehop

#endif  // ONEHOP_ONEHOP_ERROR_HPP_
