// SPDX-License-Identifier: Apache-2.0
//
// The Python classes Request and Message.
#pragma once

#include <memory>

#include "interrupt.h"
#include "operation.h"

namespace onehop::python {

// The result of a receive or of a finished request.
struct PyMessage {
  oh_message value;
};

class PyRequest {
 public:
  explicit PyRequest(std::unique_ptr<Operation> operation) : operation_(std::move(operation)) {}
  PyRequest(PyRequest&&) noexcept = default;
  ~PyRequest() { orphans().adopt(std::move(operation_)); }
  Operation& operation() const { return *operation_; }

 private:
  std::unique_ptr<Operation> operation_;
};

// Waits until the operation has ended; at the deadline ends it. Returns its status; the error text
// is that of the C API.
oh_status wait_for_end(Operation& operation, Patience& patience);
// Waits within a blocking call, whose request the caller never sees. When it returns or raises, the
// operation has ended or is an orphan.
PyMessage finish(std::unique_ptr<Operation> operation, Patience& patience);
// The result of an operation that succeeded.
PyMessage message_of(Operation& operation);

void bind_request(nb::module_& module);

}  // namespace onehop::python
