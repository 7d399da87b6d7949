// SPDX-License-Identifier: Apache-2.0
//
// Arena: the device addresses of this process. One range that the CPU cannot touch, so that an
// address in it is known to be of a device even after its memory was freed.
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

  // Addresses, 0: none left. The last that were released of this size come first, as with the real
  // driver.
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

// Memory at device addresses that the CPU may touch: managed, pinned. Inaccessible again, and its
// addresses given back, when the last user lets go.
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
