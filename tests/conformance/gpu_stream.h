// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of the stream domain: a side's stream, and the link kinds that support the
// domain.
//
// Threading: one thread on each side.
#pragma once

#include <cstdlib>
#include <functional>

#include "conformance/fake_driver.h"
#include "onehop/stream.h"
#include "sanitizers.h"

namespace conformance {

inline constexpr size_t kMostBytes = 2'600'000;
inline constexpr uint8_t kPoison = 0xEE;

class StreamSide {
 public:
  // `connects`: false for a further stream of a connected side.
  explicit StreamSide(Side& side, bool connects = true) : side_(side) {
    if (connects) side.connect();
    stream_ = make_stream();
  }
  ~StreamSide() { destroy_stream(stream_); }
  StreamSide(const StreamSide&) = delete;
  StreamSide& operator=(const StreamSide&) = delete;

  void* stream() { return stream_; }
  void send(Buffer& buffer, size_t size, uint32_t lane = 0) {
    oh_stream_options options = on(lane);
    onehop::check(oh_peer_stream_send(side_.peer().get(), stream_, buffer.data(), size, &options));
  }
  void recv(Buffer& buffer, size_t capacity, uint32_t lane = 0) {
    oh_stream_options options = on(lane);
    onehop::check(
        oh_peer_stream_recv(side_.peer().get(), stream_, buffer.data(), capacity, &options));
  }
  void finish() { synchronize_stream(stream_); }
  // Waits for the stream; fails the test on an error that the test has not consumed.
  void end() {
    finish();
    EXPECT_EQ(oh_peer_async_error(side_.peer().get()), OH_OK) << oh_error_text();
    side_.sync();
    side_.disconnect();
  }

 private:
  static oh_stream_options on(uint32_t lane) {
    auto options = onehop::detail::sized<oh_stream_options>();
    options.lane = lane;
    options.timeout_ns = 20'000'000'000;
    return options;
  }
  Side& side_;
  void* stream_ = nullptr;
};

// Connected sides with a stream each; a role calls end().
using StreamRole = std::function<void(Side&, StreamSide&)>;
inline void run_streams(const LinkKind& kind, const StreamRole& first, const StreamRole& second) {
  auto with_stream_of = [](const StreamRole& role) {
    return [&role](Side& side) {
      StreamSide here(side);
      role(side, here);
    };
  };
  run_pair(kind, with_stream_of(first), with_stream_of(second));
}
inline void run_streams(const LinkKind& kind, const StreamRole& both) {
  run_streams(kind, both, both);
}

// On the fake driver, or on the machine's own devices with REAL_GPUS=1.
inline LinkKind real_if_wanted(LinkKind kind) {
  if (std::getenv("REAL_GPUS")) {
    kind.driver.clear();
    kind.env.erase("ONEHOP_CUDA_LIBRARY");
  }
  return kind;
}

// Kernels cannot access the peer's memory.
inline LinkKind without_ipc(LinkKind kind) {
  kind.name += "ByProxy";
  kind.env["ONEHOP_CUDA_IPC"] = "off";
  return kind;
}
inline LinkKind by_proxy(MemoryKind memory = MemoryKind::kMalloc) {
  return without_ipc(real_if_wanted(between_gpus(memory)));
}
// Kernels can access the peer's memory, but without atomics, as over PCIe.
inline LinkKind without_atomics() {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.name += "WithoutAtomicsByProxy";
  kind.env["FAKE_CUDA"] = "devices=2,atomics=none";
  return kind;
}
// Links without shared memory, as between hosts.
inline std::vector<LinkKind> host_kinds() {
  std::vector<LinkKind> kinds;
  for (oh_path path : {OH_PATH_UCX, OH_PATH_SOCKET}) {
    if (kSanitized && path == OH_PATH_SOCKET) continue;
    kinds.push_back(real_if_wanted(between_hosts(path, between_gpus(MemoryKind::kMalloc))));
    kinds.back().name += "ByProxy";
  }
  return kinds;
}
// A test cannot configure which links the machine's own devices have.
inline std::vector<LinkKind> proxy_kinds() {
  std::vector<LinkKind> kinds = host_kinds();
  kinds.push_back(by_proxy());
  if (std::getenv("REAL_GPUS")) return kinds;
  LinkKind kind = real_if_wanted(between_gpus(MemoryKind::kMalloc));
  kind.name += "ThreadsByProxy";
  kind.processes = false;
  kind.env["FAKE_CUDA"] = "devices=2,p2p=none";
  kinds.push_back(kind);
  kinds.push_back(without_atomics());
  return kinds;
}
// Links between two processes: one with shared memory, and those without.
inline std::vector<LinkKind> apart_by_proxy() {
  std::vector<LinkKind> kinds = host_kinds();
  kinds.push_back(by_proxy());
  return kinds;
}

// Kernels can access the peer's memory.
inline LinkKind with_stream() { return real_if_wanted(between_gpus(MemoryKind::kMalloc)); }

inline oh_path stream_path(const LinkKind& kind) {
  return kind.name.ends_with("ByProxy") ? OH_PATH_PROXY : OH_PATH_NVLINK;
}

// Links whose peer memory kernels can access.
inline std::vector<LinkKind> kernel_kinds() {
  std::vector<LinkKind> kinds;
  for (MemoryKind memory : {MemoryKind::kMalloc, MemoryKind::kVmm, MemoryKind::kAsync}) {
    kinds.push_back(real_if_wanted(between_gpus(memory)));
  }
  LinkKind threads = real_if_wanted(between_gpus(MemoryKind::kMalloc));
  threads.name += "Threads";
  threads.processes = false;
  threads.path = OH_PATH_LOCAL;
  kinds.push_back(threads);
  if (std::getenv("REAL_GPUS")) return kinds;
  // Kernels compiled for an architecture without clusters.
  LinkKind old = between_gpus(MemoryKind::kMalloc);
  old.name += "WithoutClusters";
  old.env["FAKE_CUDA"] = "devices=2,code=80";
  kinds.push_back(old);
  return kinds;
}

inline std::vector<LinkKind> stream_kinds() {
  std::vector<LinkKind> kinds = kernel_kinds();
  kinds.push_back(by_proxy(MemoryKind::kVmm));
  for (const LinkKind& kind : proxy_kinds()) kinds.push_back(kind);
  return kinds;
}

// One link kind for each way of the stream domain.
inline std::vector<LinkKind> way_kinds() {
  std::vector<LinkKind> kinds = apart_by_proxy();
  kinds.push_back(with_stream());
  return kinds;
}

// Returns the reason that errors and tables give for using the proxy.
inline std::string why_by_proxy(const LinkKind& kind) {
  if (!kind.shares_memory()) return "no shared memory";
  if (kind.name == without_atomics().name) return "native atomics";
  return kind.processes ? "ONEHOP_CUDA_IPC" : "peer access";
}

inline oh_stream_options within(int64_t timeout_ns, uint32_t lane = 0) {
  auto options = onehop::detail::sized<oh_stream_options>();
  options.timeout_ns = timeout_ns;
  options.lane = lane;
  return options;
}

inline oh_path path_to(const onehop::Peer& peer) {
  auto info = onehop::detail::sized<oh_stream_info>();
  onehop::check(oh_peer_get_stream_info(peer.get(), &info));
  return info.path;
}

inline oh_status error_of(Side& side) { return oh_peer_async_error(side.peer().get()); }

// Exchanges messages in both directions at once and checks the bytes.
inline void exchange(Side& side, StreamSide& here, Buffer& out, Buffer& in, uint64_t seed,
                     size_t size, uint32_t lane) {
  out.fill(seed + static_cast<uint64_t>(side.number()));
  in.poison();
  onehop::check(oh_group_begin());
  here.send(out, size, lane);
  here.recv(in, size, lane);
  onehop::check(oh_group_end());
  here.finish();
  EXPECT_TRUE(in.holds(seed + static_cast<uint64_t>(1 - side.number()), size));
}
inline void exchange(Side& side, StreamSide& here, uint64_t seed, uint32_t lane = 0,
                     size_t size = 150'000) {
  Buffer out = side.buffer(size);
  Buffer in = side.buffer(size);
  exchange(side, here, out, in, seed, size, lane);
}

}  // namespace conformance
