// SPDX-License-Identifier: Apache-2.0
//
// StreamMark: detects when a stream has executed all work enqueued so far, with a few calls of the
// CUDA driver, which the library has already opened. All are allowed while a stream is being
// captured.
//
// Threading: needs the GIL. Ownership: a mark owns its event; the primary contexts that it used
// stay retained.
#pragma once

#include <memory>

namespace onehop::python {

class StreamMark {
 public:
  // Records the mark after all work in a stream of device `ordinal`.
  StreamMark(void* stream, int ordinal);
  ~StreamMark();
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;

  // Whether the stream has reached the mark. Never, if the driver could not record it.
  bool passed() const;

  // Whether the stream is being captured into a graph.
  static bool is_captured(void* stream, int ordinal);

 private:
  void* context_;
  void* event_ = nullptr;
};

}  // namespace onehop::python
