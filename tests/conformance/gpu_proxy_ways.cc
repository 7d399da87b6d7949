// SPDX-License-Identifier: Apache-2.0
//
// Which links use the proxy, and groups with links of both ways.
#include "conformance/fake_driver.h"
#include "conformance/gpu_stream.h"

namespace conformance::gpu_proxy_ways {
namespace {

constexpr int64_t kPatience = 20'000'000'000;

std::string text_of_error() { return oh_error_text(); }

// Only one of the two cannot map: then both use the proxy.
TEST(GpuProxyWays, BothGoByProxyWhenOneCannotMap) {
  auto both = [](Side& side) {
    use_device(side.kind().driver, side.kind().device[side.number()]);
    if (side.number() == 1) {
      fake_driver().fail("cuIpcOpenMemHandle_v2", 0, 1);
      fake_driver().fail("cuMemImportFromShareableHandle", 0, 1);
    }
    {
      StreamSide here(side);
      Buffer out = side.buffer(300'000);
      Buffer in = side.buffer(300'000);
      out.fill(static_cast<uint64_t>(side.number()));
      onehop::check(oh_group_begin());
      here.send(out, 300'000);
      here.recv(in, 300'000);
      onehop::check(oh_group_end());
      here.finish();
      EXPECT_TRUE(in.holds(static_cast<uint64_t>(1 - side.number()), 300'000));
      EXPECT_EQ(path_to(side.peer()), OH_PATH_PROXY);
      here.end();
    }
    fake_driver().clear_failures();
  };
  run_apart(between_gpus(MemoryKind::kMalloc), both, both);
}

// Two streams signal one slot concurrently; counts the signals that arrive.
constexpr uint64_t kSignals = 100;

void signal_twice_at_once(Side& side) {
  StreamSide here(side);
  StreamSide beside(side, /*connects=*/false);
  oh_peer* peer = side.peer().get();
  onehop::check(oh_peer_warmup(peer, kPatience));
  side.sync();
  for (uint64_t i = 0; i < kSignals; ++i) {
    for (void* stream : {here.stream(), beside.stream()}) {
      onehop::check(oh_peer_stream_signal(peer, stream, 3, 1));
    }
  }
  here.finish();
  beside.finish();
  side.sync();
  side.sync();
  side.disconnect();
}

bool all_signals_come(Side& side) {
  StreamSide here(side);
  oh_peer* peer = side.peer().get();
  onehop::check(oh_peer_warmup(peer, kPatience));
  side.sync();
  side.sync();  // all signals were sent
  auto options = within(kPatience);
  if (path_to(side.peer()) == OH_PATH_NVLINK) options = within(200'000'000);
  onehop::check(oh_peer_stream_wait_signal(peer, here.stream(), 3, 2 * kSignals, &options));
  here.finish();
  const oh_status status = error_of(side);
  EXPECT_TRUE(status == OH_OK || status == OH_ERR_TIMEOUT) << text_of_error();
  side.sync();
  side.disconnect();
  return status == OH_OK;
}

// Over such a link a kernel's add to a word of the other GPU is a read and a write: of two
// concurrent adds one is lost.
TEST(GpuProxyWays, SignalsOfKernelsAreLostWithoutNativeAtomics) {
  LinkKind kind = without_atomics();
  kind.env["FAKE_CUDA"] = "devices=2,atomics=lost";
  run_apart(kind, signal_twice_at_once, [](Side& side) { EXPECT_FALSE(all_signals_come(side)); });
  run_apart(without_atomics(), signal_twice_at_once,
            [](Side& side) { EXPECT_TRUE(all_signals_come(side)); });
}

// A small message on each lane, whose receive waits for it; counts the wrong ones.
constexpr size_t kFewBytes = 20;

uint64_t receive_and_count_wrong(Side& side) {
  uint64_t wrong = 0;
  StreamSide here(side);
  Buffer buffer = side.buffer(kFewBytes);
  onehop::check(oh_peer_warmup(side.peer().get(), kPatience));
  for (uint32_t lane = 0; lane < OH_LANES; ++lane) {
    buffer.poison();
    here.recv(buffer, kFewBytes, lane);
    side.sync();
    here.finish();
    wrong += buffer.holds(lane, kFewBytes) ? 0 : 1;
    side.sync();
  }
  here.end();
  return wrong;
}

void send_to_be_counted(Side& side) {
  StreamSide here(side);
  Buffer buffer = side.buffer(kFewBytes);
  onehop::check(oh_peer_warmup(side.peer().get(), kPatience));
  for (uint32_t lane = 0; lane < OH_LANES; ++lane) {
    buffer.fill(lane);
    side.sync();
    here.send(buffer, kFewBytes, lane);
    here.finish();
    side.sync();
  }
  here.end();
}

TEST(GpuProxyWays, MessagesOfKernelsAreTornWhereSixteenBytesAre) {
  LinkKind kind = without_atomics();
  kind.env["FAKE_CUDA"] = "devices=2,atomics=lost";
  run_apart(kind, send_to_be_counted,
            [](Side& side) { EXPECT_GT(receive_and_count_wrong(side), 0u); });
  run_apart(without_atomics(), send_to_be_counted,
            [](Side& side) { EXPECT_EQ(receive_and_count_wrong(side), 0u); });
}

// Each process sees only its own GPU: NVML supplies what the driver cannot report.
TEST(GpuProxyWays, OfAHiddenGpuNvmlTellsWhetherKernelsMayUseTheLink) {
  struct Case {
    const char* library;
    const char* nvml;
    oh_path path;
    const char* reason;
  };
  for (const Case& each : {Case{FAKE_CUDA_LIBRARY, "nvlink=0-1", OH_PATH_NVLINK, ""},
                           Case{FAKE_CUDA_LIBRARY, "level=50", OH_PATH_PROXY, "PCIe"},
                           Case{"off", "", OH_PATH_PROXY, "CUDA_VISIBLE_DEVICES"}}) {
    LinkKind kind = between_gpus(MemoryKind::kMalloc);
    kind.env["ONEHOP_NVML_LIBRARY"] = each.library;
    kind.env["FAKE_NVML"] = each.nvml;
    kind.device[1] = 0;
    auto both = [each](Side& side) {
      StreamSide here(side);
      onehop::check(oh_peer_warmup(side.peer().get(), kPatience));
      EXPECT_EQ(path_to(side.peer()), each.path) << each.nvml;
      auto info = onehop::detail::sized<oh_stream_info>();
      onehop::check(oh_peer_get_stream_info(side.peer().get(), &info));
      EXPECT_NE(std::string(info.why_no_kernels).find(each.reason), std::string::npos)
          << info.why_no_kernels;
      exchange(side, here, 1);
      here.end();
    };
    // Set before the driver is loaded.
    auto hidden = [both](const char* own) {
      return [both, own](Side& side) {
        setenv("CUDA_VISIBLE_DEVICES", own, 1);
        use_device(side.kind().driver, 0);
        both(side);
      };
    };
    run_apart(kind, hidden("0"), hidden("1"));
  }
}

// Ranks 0 and 1 can access each other's memory, rank 2 none. Rank 0 launches both of its parts
// together, and each needs the other's: with separate launches the first kernel would wait for the
// second.
TEST(GpuProxyWays, AGroupOfBothWaysIsBegunAsOne) {
  constexpr size_t kSize = 400'000;
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.env["FAKE_CUDA"] = "devices=3,p2p=0-1";
  run_ranks(kind, 3, [&](uint32_t rank, const onehop::Bytes& id) {
    use_device(kind.driver, static_cast<int>(rank));
    const std::string device = "cuda:" + std::to_string(rank);
    auto options = onehop::detail::sized<oh_comm_options>();
    options.rank = rank;
    options.size = 3;
    options.unique_id = id.data();
    options.unique_id_size = id.size();
    options.timeout_ns = kPatience;
    options.endpoint = onehop::detail::sized<oh_endpoint_options>();
    options.endpoint.device = device.c_str();
    onehop::Communicator comm(options);
    Buffer out(kSize, kind.memory[0]);
    Buffer in(kSize, kind.memory[0]);
    out.fill(rank);
    void* stream = make_stream();
    auto sends = [&](uint32_t to) {
      onehop::check(oh_peer_stream_send(comm.peer(to).get(), stream, out.data(), kSize, nullptr));
    };
    auto receives = [&](uint32_t from) {
      onehop::check(oh_peer_stream_recv(comm.peer(from).get(), stream, in.data(), kSize, nullptr));
    };
    for (uint32_t other = 0; other < 3; ++other) {
      if (other == rank) continue;
      onehop::check(oh_peer_warmup(comm.peer(other).get(), kPatience));
      EXPECT_EQ(path_to(comm.peer(other)), rank + other == 1 ? OH_PATH_NVLINK : OH_PATH_PROXY);
    }
    auto all = [&] {
      if (rank == 0) {
        onehop::check(oh_group_begin());
        sends(2);
        sends(1);
        onehop::check(oh_group_end());
      } else if (rank == 1) {
        receives(0);
        sends(2);
      } else {
        receives(1);
        receives(0);
      }
    };
    void* graph = capture_graph(stream, all);
    for (int round = 0; round < 6; ++round) {
      in.poison();
      if (round % 2 == 0) {
        all();
      } else {
        launch_graph(graph, stream);
      }
      synchronize_stream(stream);
      EXPECT_TRUE(rank == 0 || in.holds(0, kSize)) << "round " << round;
      comm.barrier(onehop::Timeout(kPatience));
    }
    destroy_graph(graph);
    destroy_stream(stream);
  });
}

}  // namespace
}  // namespace conformance::gpu_proxy_ways
