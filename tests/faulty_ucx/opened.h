// SPDX-License-Identifier: Apache-2.0
//
// The open UCX objects of the process, and their owners.
//
// Threading: any thread; `links` is guarded by the mutex.
#pragma once

#include <atomic>
#include <mutex>
#include <optional>
#include <vector>

#include "platform/ucx/abi.h"

namespace oh::ucx::faulty {

struct Opened {
  struct Link {
    Worker worker;
    Endpoint endpoint;
    EndpointParams params;
  };
  std::mutex mutex;
  std::vector<Link> links;  // in order of creation
  std::atomic<size_t> configs{0};
  std::atomic<size_t> workers{0};
  std::atomic<size_t> addresses{0};
  std::atomic<size_t> requests{0};  // requests of the real library
  std::atomic<size_t> data{0};
  std::atomic<size_t> mapped{0};
  std::atomic<size_t> packed{0};
  std::atomic<size_t> keys{0};

  static Opened& instance() {
    static auto* const only = new Opened;  // outlives every thread
    return *only;
  }
  std::optional<Link> oldest(Worker worker) {
    std::lock_guard lock(mutex);
    for (const Link& link : links) {
      if (link.worker == worker) return link;
    }
    return {};
  }
  Worker worker_of(Endpoint endpoint) {
    std::lock_guard lock(mutex);
    for (const Link& link : links) {
      if (link.endpoint == endpoint) return link.worker;
    }
    return nullptr;
  }
};

}  // namespace oh::ucx::faulty
