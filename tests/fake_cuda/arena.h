// SPDX-License-Identifier: Apache-2.0
//
// Arena: allocates the device addresses of this process from one range that the CPU cannot access.
// An address in the range is recognized as a device address even after its memory was freed.
//
// Threading: any thread.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "platform/cuda/abi.h"

namespace oh::cuda::fake {

constexpr size_t kPage = 4096;
constexpr size_t round_up(size_t size, size_t unit) { return (size + unit - 1) / unit * unit; }

class Arena {
 public:
  static Arena& instance();

  // Returns addresses, or 0 if none are left. Reuses the most recently released range of the same
  // size first, as the real driver does.
  DevicePtr take(size_t size, size_t alignment);
  void give(DevicePtr base, size_t size);
  bool contains(DevicePtr address) const { return address >= base_ && address < base_ + kSize; }

 private:
  static constexpr size_t kSize = size_t{1} << 40;
  Arena();

  std::mutex mutex_;
  DevicePtr base_ = 0;
  DevicePtr next_ = 0;
  std::map<size_t, std::vector<DevicePtr>> released_;
};

// Memory at device addresses that the CPU may access: managed, pinned. The last owner's release
// makes the range inaccessible again and returns its addresses to the arena.
class CpuPages {
 public:
  static std::shared_ptr<CpuPages> create(size_t size);
  ~CpuPages();
  CpuPages(const CpuPages&) = delete;
  CpuPages& operator=(const CpuPages&) = delete;
  DevicePtr base() const { return base_; }

 private:
  CpuPages() = default;
  DevicePtr base_ = 0;
  size_t size_ = 0;
};

}  // namespace oh::cuda::fake
