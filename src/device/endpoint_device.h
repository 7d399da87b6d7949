// SPDX-License-Identifier: Apache-2.0
//
// EndpointDevice: the GPU of one endpoint, with its worker, staging pool, NUMA node, and exports of
// device memory. Without a GPU the endpoint is for host memory only.
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
  // `device`: "cuda:0", a UUID; empty: host memory only. `holder` owns this object.
  Status open(const Config& config, std::shared_ptr<Node> node, const std::string& device,
              std::weak_ptr<void> holder);
  void close();

  // Null: host memory only.
  const std::shared_ptr<cuda::Gpu>& gpu() const { return gpu_; }
  // Null: the worker is disabled or not possible.
  const std::shared_ptr<Worker>& worker() const { return worker_; }
  // Null: host memory only.
  const std::shared_ptr<StagingPool>& staging() const { return staging_; }
  PoolStats staging_stats() const { return staging_ ? staging_->stats() : PoolStats{}; }
  // The NUMA node for threads and memory; -1: any.
  int numa_node() const { return numa_node_; }
  // Why the GPU's context is lost; ok: it is not.
  Status lost() const { return gpu_ && gpu_->is_lost() ? gpu_->loss() : Status(); }

  // Revokes all exports of device memory that overlap the range and that no region uses, here and
  // at the peers.
  void retire_exports(const void* data, uint64_t length);
  // Revokes all exports that no region uses.
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
