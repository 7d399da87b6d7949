// SPDX-License-Identifier: Apache-2.0
//
// FakeNuma: a host with simulated NUMA nodes. Files of /sys and thread affinities are set by the
// test; requests to the kernel are recorded and applied to the simulation, or fail.
//
// Threading: any thread; the settings are made before.
#pragma once

#include <errno.h>
#include <string.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "platform/os/numa.h"
#include "platform/os/os.h"

namespace unit {

inline oh::CpuSet cpus(const std::string& text) { return *oh::CpuSet::parse(text); }

class FakeNuma final : public oh::Os {
 public:
  struct Placed {
    uint64_t size;
    int node;
  };

  FakeNuma() { former_ = oh::os_replace(this); }
  ~FakeNuma() override { oh::os_replace(former_); }

  std::map<std::string, std::string> files;
  std::string allowed = "0-7";  // initial affinity of every thread
  int affinity_error = 0;
  int mbind_error = 0;

  void add_node(int node, const std::string& list) {
    files["/sys/devices/system/node/node" + std::to_string(node) + "/cpulist"] = list + "\n";
  }
  // Returns the CPU lists that threads were moved to, in order.
  std::vector<std::string> moves() const {
    std::lock_guard lock(mutex_);
    return moves_;
  }
  std::vector<Placed> placed() const {
    std::lock_guard lock(mutex_);
    return placed_;
  }
  // Sets the affinity as if the program itself had set it for this thread.
  void set(const std::string& list) {
    std::lock_guard lock(mutex_);
    now_[this_thread()] = cpus(list);
  }

  int64_t read_file(const char* path, char* out, size_t size) override {
    auto found = files.find(path);
    if (found == files.end()) return -ENOENT;
    size_t length = std::min(size, found->second.size());
    memcpy(out, found->second.data(), length);
    return static_cast<int64_t>(length);
  }
  int sched_getaffinity(void* mask, size_t size) override {
    std::lock_guard lock(mutex_);
    memcpy(mask, now().mask(), size);
    return 0;
  }
  int sched_setaffinity(const void* mask, size_t size) override {
    std::lock_guard lock(mutex_);
    if (affinity_error) return -affinity_error;
    now() = oh::CpuSet();
    for (unsigned cpu = 0; cpu < 8 * size; ++cpu) {
      if (static_cast<const uint8_t*>(mask)[cpu / 8] >> cpu % 8 & 1) now().add(cpu);
    }
    moves_.push_back(now().text());
    return 0;
  }
  int mbind_preferred(void*, uint64_t size, int node) override {
    std::lock_guard lock(mutex_);
    placed_.push_back({size, node});
    return -mbind_error;
  }

 private:
  static const void* this_thread() {
    static thread_local const char mark = 0;
    return &mark;
  }
  oh::CpuSet& now() { return now_.try_emplace(this_thread(), cpus(allowed)).first->second; }

  oh::Os* former_;
  mutable std::mutex mutex_;
  std::map<const void*, oh::CpuSet> now_;
  std::vector<std::string> moves_;
  std::vector<Placed> placed_;
};

}  // namespace unit
