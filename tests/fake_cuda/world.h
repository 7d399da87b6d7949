// SPDX-License-Identifier: Apache-2.0
//
// World: the driver's state in this process: contexts, memory, streams, events, pools, by handle.
//
// Threading: World::mutex guards everything, except where a member says otherwise. `changed` is
// notified after every change that a call may wait for; each stream's worker has a condition of its
// own. The world is never destroyed: workers and exit handlers may still use it when the process
// ends.
#pragma once

#include <atomic>
#include <condition_variable>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include "arena.h"
#include "backing.h"
#include "config.h"
#include "platform/cuda/abi.h"

namespace oh::cuda::fake {

constexpr Code kCaptureInvalidated = 901;
constexpr Code kCaptureUnmatched = 903;
constexpr Code kCaptureUnjoined = 904;
constexpr Code kCaptureIsolation = 905;
constexpr Code kCapturedEvent = 907;
constexpr Code kCaptureWrongThread = 908;
constexpr size_t kGranularity = size_t{2} << 20;  // of VMM memory

struct StreamState;     // streams.h
struct Capture;         // capture.h
struct GraphState;      // graphs.h
struct GraphExecState;  // graphs.h
struct Kernel;          // kernels.h

struct ContextState {
  Context handle = nullptr;  // the same for all contexts of a device, as with the driver
  uint64_t id = 0;           // never reused
  Device ordinal = 0;
  int physical = 0;
  unsigned retained = 0;
  Code sticky = kSuccess;  // every later call returns it
  std::set<Device> peers;  // devices whose memory it may write
  std::map<uint64_t, std::shared_ptr<StreamState>> default_streams;  // by thread; 0: the legacy one
  std::vector<std::weak_ptr<StreamState>> closed_streams;  // may still have queued operations
  size_t running = 0;               // kernels running on the device, not queued
  uint64_t idle = 0;                // times that the last running kernel ended
  std::atomic<bool> killed{false};  // kernels poll it, without the lock; relaxed: carries no data
};

struct EventState {
  std::shared_ptr<ContextState> context;
  std::shared_ptr<StreamState> stream;  // of the last record; null: never recorded
  uint64_t ticket = 0;  // complete when the stream has completed this many operations
  // For a record of the whole context: all its streams and tickets.
  std::vector<std::pair<std::shared_ptr<StreamState>, uint64_t>> all;
  std::shared_ptr<Capture> capture;  // set if the last record was captured
  std::vector<size_t> nodes;         // nodes of the capture that the event depends on
  bool is_timed = true;
  std::shared_ptr<int64_t> at;  // time in ns, once the last record is complete
};

struct FunctionState {
  const Kernel* kernel = nullptr;
  Module of = nullptr;
  bool is_loaded = false;
};

struct Pool {
  MemoryPool handle = nullptr;
  Device ordinal = 0;
  int physical = 0;
  int handle_types = 0;
  bool imported = false;
  bool is_default = false;
  int fd = -1;          // handle for other processes
  uint64_t object = 0;  // inode of the handle
  std::set<Device> access;
  ~Pool();
};

struct VmmAllocation {
  AllocationHandle handle = 0;
  unsigned references = 0;  // 0: released; lives on while it is mapped
  std::shared_ptr<Backing> backing;
  AllocationProp prop{};
  bool imported = false;
};

enum class Kind {
  kDevice,
  kManaged,
  kHost,       // pinned: by cuMemHostAlloc, or registered
  kHostAlias,  // the device address of host memory
  kVmm,        // one mapping in a reservation
  kPool,
  kImport,  // imported by a legacy handle
};

// Live memory at [base, base + size).
struct Range {
  DevicePtr base = 0;
  size_t size = 0;
  Kind kind = Kind::kDevice;
  char* bytes = nullptr;             // host address at which this process accesses it
  std::shared_ptr<void> keep;        // keeps `bytes` valid
  std::shared_ptr<Backing> backing;  // null: host memory
  std::shared_ptr<ContextState> context;
  Device ordinal = 0;
  uint64_t buffer_id = 0;
  bool imported = false;
  bool registered = false;  // kHost: by cuMemHostRegister
  DevicePtr other = 0;      // kHost: its alias or 0; kHostAlias: its host address
  unsigned references = 1;  // for kImport
  DevicePtr reservation = 0;
  std::shared_ptr<VmmAllocation> vmm;
  std::shared_ptr<Pool> pool;
  std::set<Device> access;  // for kVmm: devices with access
};

// A piece of memory that is accessed without the lock.
struct Piece {
  char* bytes;
  size_t size;
  std::shared_ptr<void> keep;
};

struct World {
  std::mutex mutex;
  std::condition_variable changed;
  bool initialised = false;
  bool hold_all = false;
  std::vector<StreamState*> stalled;  // with queued operations that cannot start yet
  uint64_t next_handle = 0x10000;     // never reused, except for streams
  uint64_t next_buffer_id = 1;
  uint64_t next_capture_id = 1;
  uint64_t next_stream_id = 1;  // never reused
  uint64_t next_thread = 1;
  unsigned delay_us = 0;

  std::vector<std::shared_ptr<ContextState>> contexts;  // by ordinal; null: not retained
  std::map<Device, Context> context_handles;
  uint64_t next_context_id = 1;
  std::vector<std::shared_ptr<Pool>> default_pools;  // by ordinal
  std::map<Stream, std::shared_ptr<StreamState>> streams;
  std::vector<Stream> free_streams;  // handles of destroyed streams; the last one is reused next
  std::map<Event, std::shared_ptr<EventState>> events;
  std::map<MemoryPool, std::shared_ptr<Pool>> pools;
  std::map<Graph, std::shared_ptr<const GraphState>> graphs;
  std::map<GraphExec, std::shared_ptr<GraphExecState>> graph_execs;
  std::set<Module> modules;
  std::map<Function, FunctionState> functions;
  std::map<std::string, unsigned> blocks;  // of the last launch of each kernel
  size_t blocked = 0;                      // calls that wait for kernels, or for the device
  bool loading = false;  // a first launch waits for the device and holds the launch lock
  std::vector<std::shared_ptr<Capture>> captures;
  std::map<DevicePtr, Range> ranges;         // by base
  std::map<DevicePtr, size_t> reservations;  // VMM addresses, by base
  std::map<AllocationHandle, std::shared_ptr<VmmAllocation>> vmm_handles;

  static World& instance();
  template <typename Handle>
  Handle new_handle() {
    return reinterpret_cast<Handle>(next_handle += 16);
  }
  std::shared_ptr<ContextState> context(Context handle) const;
  // Returns the range that contains the address, or null.
  Range* find(DevicePtr address);
  Range* find_base(DevicePtr base, Kind kind);
  // Returns this process's ordinal for a physical device, or `otherwise` if the device is hidden.
  Device ordinal_of(int physical, Device otherwise) const;
  // Places a context's memory at new addresses with a new buffer id. 0: no addresses left.
  DevicePtr place(Range range);
  void remove(DevicePtr base);
  // Resolves [address, address + size) to host pieces, with the access rights of a stream of the
  // context. False: not live memory. Addresses outside the device range are host addresses.
  bool resolve(DevicePtr address, size_t size, const ContextState& context,
               std::vector<Piece>* out);
};

}  // namespace oh::cuda::fake
