// SPDX-License-Identifier: Apache-2.0
//
// EndpointDevice: the GPU of one endpoint, and what goes with it: its worker, the staging pool, the
// NUMA node, and the exports of device memory. Without a GPU the endpoint is for host memory only.
//
// Threading: any thread, after open().
#pragma once

#include <atomic>
#include <memory>
#include <string>

#include "base/config.h"
#include "control/node.h"
#include "device/locate.h"
#include "device/worker.h"
#include "memory/staging_pool.h"

namespace oh {

class EndpointDevice {
 public:
  // `device`: "cuda:0", a UUID; empty: host memory only. `holder` keeps this object.
  Status open(const Config& config, std::shared_ptr<Node> node, const std::string& device,
              std::weak_ptr<void> holder);
  void close();

  // Null: host memory only.
  const std::shared_ptr<cuda::Gpu>& gpu() const { return gpu_; }
  // Null: none is wanted, or there can be none.
  const std::shared_ptr<Worker>& worker() const { return worker_; }
  // Null: host memory only.
  const std::shared_ptr<StagingPool>& staging() const { return staging_; }
  PoolStats staging_stats() const { return staging_ ? staging_->stats() : PoolStats{}; }
  // The node near which threads and memory are to be; -1: anywhere.
  int numa_node() const { return numa_node_; }
  // What became of the GPU's context; ok: nothing.
  Status lost() const { return gpu_ && gpu_->is_lost() ? gpu_->loss() : Status(); }

  // Revokes all exports of device memory that overlap the range, here and at the peers.
  void retire_exports(const void* data, uint64_t length);
  // All exports that no region stands for.
  void trim() { retire_exports(nullptr, UINT64_MAX); }

 private:
  void start_worker(const Config& config);
  void sweep_exports();

  std::weak_ptr<void> holder_;
  std::shared_ptr<Node> node_;
  std::shared_ptr<cuda::Gpu> gpu_;
  std::shared_ptr<Worker> worker_;
  std::shared_ptr<StagingPool> staging_;
  int numa_node_ = -1;
  std::atomic<bool> closed_{false};
};

}  // namespace oh
