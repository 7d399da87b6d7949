// SPDX-License-Identifier: Apache-2.0
//
// Whether a stream is through with what it was given: a few calls of CUDA's driver, which the
// library has opened before. All are allowed while any stream is being captured.
//
// Threading: needs the GIL. Ownership: a mark owns its event; primary contexts that it has used
// stay retained.
#pragma once

#include <memory>

namespace onehop::python {

class StreamMark {
 public:
  // Behind all that the stream has now. `memory` is device memory, of the stream's device.
  StreamMark(void* stream, const void* memory);
  ~StreamMark();
  StreamMark(const StreamMark&) = delete;
  StreamMark& operator=(const StreamMark&) = delete;

  // Whether the stream has come here. Never, if the driver could not set the mark.
  bool passed() const;

  // Whether the stream is being captured into a graph.
  static bool is_captured(void* stream, const void* memory);

 private:
  void* context_;
  void* event_ = nullptr;
};

}  // namespace onehop::python
