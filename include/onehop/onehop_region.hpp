// SPDX-License-Identifier: Apache-2.0
//
// Regions of this process and of peers. Part of onehop.hpp.
#ifndef ONEHOP_ONEHOP_REGION_HPP_
#define ONEHOP_ONEHOP_REGION_HPP_

#include "onehop/onehop.h"
#include "onehop/onehop_error.hpp"
#include "onehop/onehop_options.hpp"

namespace onehop {

// Registered local memory.
class Region {
 public:
  explicit Region(oh_region* handle) : handle_(handle) {}
  Bytes descriptor() const {
    return detail::fill(256, [&](void* out, size_t* size) {
      return oh_region_descriptor(handle_.get(), out, size);
    });
  }
  void deregister(Timeout timeout = kDefaultTimeout) {
    check(oh_region_deregister(handle_.get(), timeout.count()));
  }
  void* data() const { return oh_region_data(handle_.get()); }
  size_t size() const { return oh_region_size(handle_.get()); }

 private:
  detail::Handle<oh_region, oh_region_release> handle_;
};

// A peer's region.
class RemoteRegion {
 public:
  explicit RemoteRegion(oh_remote_region* handle) : handle_(handle) {}
  size_t size() const { return oh_remote_region_size(handle_.get()); }
  bool is_mapped() const { return oh_remote_region_is_mapped(handle_.get()) != 0; }
  bool is_read_only() const { return oh_remote_region_is_read_only(handle_.get()) != 0; }
  // For puts by kernels. Valid until the region is detached.
  oh_remote_memory device() const;
  oh_remote_region* get() const { return handle_.get(); }

 private:
  detail::Handle<oh_remote_region, oh_remote_region_detach> handle_;
};

}  // namespace onehop

#endif  // ONEHOP_ONEHOP_REGION_HPP_
