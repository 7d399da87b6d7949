// SPDX-License-Identifier: Apache-2.0
//
// World: the driver's state in this process: contexts, memory, streams, events, pools, by handle.
//
// Threading: everything is under World::mutex, except what an entry says of itself; `changed` is
// notified whenever something happened that a thread may wait for. It is never destroyed: workers
// and exit handlers may still use it at the end of the process.
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
  Context handle = nullptr;
  Device ordinal = 0;
  int physical = 0;
  unsigned retained = 0;
  Code sticky = kSuccess;                                            // every later call returns it
  std::set<Device> peers;                                            // whose memory it may write
  std::map<uint64_t, std::shared_ptr<StreamState>> default_streams;  // by thread; 0: the legacy one
  std::vector<std::weak_ptr<StreamState>> closed_streams;            // which may still have work
  size_t running = 0;               // kernels: on the device, not queued
  uint64_t idle = 0;                // times that the last of them left
  std::atomic<bool> killed{false};  // for its kernels, without the lock; relaxed: carries no data
};

struct EventState {
  std::shared_ptr<ContextState> context;
  std::shared_ptr<StreamState> stream;  // of the last record; null: never recorded
  uint64_t ticket = 0;                  // complete when the stream has done so many
  // Of a record of all that the context had: streams and tickets.
  std::vector<std::pair<std::shared_ptr<StreamState>, uint64_t>> all;
  std::shared_ptr<Capture> capture;  // the last record was captured
  std::vector<size_t> nodes;         // behind these of the capture
  bool is_timed = true;
  std::shared_ptr<int64_t> at;  // ns, once the last record is complete
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
  int fd = -1;          // its handle for other processes
  uint64_t object = 0;  // inode of that
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
  kHostAlias,  // what devices see of it
  kVmm,        // one mapping in a reservation
  kPool,
  kImport,  // a legacy handle
};

// Live memory at [base, base + size).
struct Range {
  DevicePtr base = 0;
  size_t size = 0;
  Kind kind = Kind::kDevice;
  char* bytes = nullptr;             // where this process may read and write it
  std::shared_ptr<void> keep;        // that the bytes need
  std::shared_ptr<Backing> backing;  // null: memory of the host
  std::shared_ptr<ContextState> context;
  Device ordinal = 0;
  uint64_t buffer_id = 0;
  bool imported = false;
  bool registered = false;  // kHost: by cuMemHostRegister
  DevicePtr other = 0;      // kHost: its alias or 0; kHostAlias: its host address
  unsigned references = 1;  // of a kImport
  DevicePtr reservation = 0;
  std::shared_ptr<VmmAllocation> vmm;
  std::shared_ptr<Pool> pool;
  std::set<Device> access;  // kVmm
};

// A piece of memory that is used outside the lock.
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
  uint64_t next_handle = 0x10000;  // never used twice, but for streams
  uint64_t next_buffer_id = 1;
  uint64_t next_capture_id = 1;
  uint64_t next_stream_id = 1;  // never used twice
  uint64_t next_thread = 1;
  unsigned delay_us = 0;

  std::vector<std::shared_ptr<ContextState>> contexts;  // by ordinal; null: not retained
  std::vector<std::shared_ptr<Pool>> default_pools;     // by ordinal
  std::map<Stream, std::shared_ptr<StreamState>> streams;
  std::vector<Stream> free_streams;  // handles of those that were destroyed, the next one last
  std::map<Event, std::shared_ptr<EventState>> events;
  std::map<MemoryPool, std::shared_ptr<Pool>> pools;
  std::map<Graph, std::shared_ptr<const GraphState>> graphs;
  std::map<GraphExec, std::shared_ptr<GraphExecState>> graph_execs;
  std::set<Module> modules;
  std::map<Function, FunctionState> functions;
  size_t blocked = 0;    // calls that wait for kernels, or for the device
  bool loading = false;  // a first launch waits for the device, and holds the lock of launches
  std::vector<std::shared_ptr<Capture>> captures;
  std::map<DevicePtr, Range> ranges;         // by base
  std::map<DevicePtr, size_t> reservations;  // of VMM addresses
  std::map<AllocationHandle, std::shared_ptr<VmmAllocation>> vmm_handles;

  static World& instance();
  template <typename Handle>
  Handle new_handle() {
    return reinterpret_cast<Handle>(next_handle += 16);
  }
  std::shared_ptr<ContextState> context(Context handle) const;
  // The range that holds the address; null: none.
  Range* find(DevicePtr address);
  Range* find_base(DevicePtr base, Kind kind);
  // An ordinal of this process for a physical device; `otherwise`: it is hidden.
  Device ordinal_of(int physical, Device otherwise) const;
  // Adds what a context has at new addresses, with a new buffer id. 0: no addresses.
  DevicePtr place(Range range);
  void remove(DevicePtr base);
  // The bytes of [address, address + size), as a stream of the context may use them. False: not
  // live memory. Addresses that are of no device are taken for the host's.
  bool resolve(DevicePtr address, size_t size, const ContextState& context,
               std::vector<Piece>* out);
};

}  // namespace oh::cuda::fake
