// SPDX-License-Identifier: Apache-2.0
//
// Request and Message as Python sees them.
#pragma once

#include <memory>

#include "interrupt.h"
#include "operation.h"

namespace onehop::python {

// What a receive or a finished request tells.
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

// Waits until the operation has ended or the time is up, which ends it. Returns its status; text as
// for the C API.
oh_status wait_for_end(Operation& operation, Patience& patience);
// The same within a blocking call, whose request the caller never sees: whatever ends the wait, the
// operation has ended, or is an orphan. Returns what it tells, or raises.
PyMessage finish(std::unique_ptr<Operation> operation, Patience& patience);
// What an operation tells that has ended well.
PyMessage message_of(Operation& operation);

void bind_request(nb::module_& module);

}  // namespace onehop::python
