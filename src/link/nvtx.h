// SPDX-License-Identifier: Apache-2.0
//
// Nvtx: NVTX ranges for a tool that is attached to the process, such as Nsight Systems.
//
// Threading: any thread; a range may end on another thread than it began on.
#pragma once

#include <cstdint>

#include "base/config.h"

namespace oh {

class Nvtx {
 public:
  // Null: no tool is attached, ONEHOP_NVTX is off, or the build has no NVTX.
  static const Nvtx* open(const Config& config);

  // The text is copied.
  uint64_t begin(const char* text, uint64_t bytes) const;
  void end(uint64_t range) const;
  void mark(const char* text) const;

 private:
  explicit Nvtx(void* domain) : domain_(domain) {}
  void* const domain_;
};

// A range that ends when this object is destroyed, if not before.
class NvtxRange {
 public:
  NvtxRange() = default;
  ~NvtxRange() { end(); }
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;

  void begin(const Nvtx& nvtx, const char* text, uint64_t bytes) {
    end();
    id_ = nvtx.begin(text, bytes);
    nvtx_ = &nvtx;
  }
  void end() {
    if (nvtx_) nvtx_->end(id_);
    nvtx_ = nullptr;
  }

 private:
  const Nvtx* nvtx_ = nullptr;  // null: no range is open
  uint64_t id_ = 0;
};

}  // namespace oh
