// SPDX-License-Identifier: Apache-2.0
//
// The worker under continuous traffic: messages and puts are correct, and calls that wait for
// running kernels still return.
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "conformance/fake_driver.h"
#include "conformance/gpu_stream.h"

namespace conformance::gpu_worker {
namespace {

using namespace std::chrono_literals;

constexpr size_t kBurst = 16;
constexpr size_t kSize = 1024;
constexpr uint64_t kEnough = 20;  // messages that the worker must have moved
constexpr size_t kSpace = 100'000;

LinkKind with_faked_worker() {
  LinkKind kind = between_gpus(MemoryKind::kMalloc);
  kind.env["ONEHOP_WORKER"] = "1";
  return kind;
}
// With REAL_GPUS=1 the GPUs must be otherwise unused: a worker is not started beside other
// processes.
LinkKind with_worker() { return real_if_wanted(with_faked_worker()); }

// Messages in one direction, in large enough numbers to use the worker.
class Traffic {
 public:
  explicit Traffic(Side& side) : side_(side) {
    for (size_t i = 0; i < kBurst; ++i) buffers_.push_back(side.buffer(kSize));
  }
  // False: the other side has stopped.
  bool receive() {
    uint8_t go_on = 0;
    side_.peer().recv(&go_on, 1, 1, 20s);
    if (go_on == 0) return false;
    std::vector<onehop::Request> receives;
    for (Buffer& buffer : buffers_) {
      buffer.poison();
      receives.push_back(side_.peer().irecv(buffer.data(), kSize, 2));
    }
    side_.peer().send(&go_on, 1, 3, 20s);
    for (onehop::Request& request : receives) {
      onehop::Message message = request.wait(20s);
      EXPECT_EQ(message.size, kSize);
      by_worker_ += message.path == OH_PATH_WORKER;
    }
    for (Buffer& buffer : buffers_) EXPECT_TRUE(buffer.holds(seed_++, kSize));
    return true;
  }
  void send() {
    uint8_t go_on = 1;
    side_.peer().send(&go_on, 1, 1, 20s);
    for (Buffer& buffer : buffers_) buffer.fill(seed_++);
    side_.peer().recv(&go_on, 1, 3, 20s);
    std::vector<onehop::Request> sends;
    for (Buffer& buffer : buffers_) {
      sends.push_back(side_.peer().isend(buffer.data(), kSize, 2));
    }
    for (onehop::Request& request : sends) {
      by_worker_ += request.wait(20s).path == OH_PATH_WORKER;
    }
  }
  void stop() {
    uint8_t stopped = 0;
    side_.peer().send(&stopped, 1, 1, 20s);
  }
  uint64_t by_worker() const { return by_worker_; }

 private:
  Side& side_;
  std::vector<Buffer> buffers_;
  uint64_t seed_ = 0;
  uint64_t by_worker_ = 0;
};

// The first side sends as long as it needs.
void run_traffic(const LinkKind& kind, const std::function<void(Side&, Traffic&)>& first) {
  run_apart(
      kind,
      [&](Side& side) {
        side.connect();
        {
          Traffic traffic(side);
          first(side, traffic);
          traffic.stop();
          side.tell_number(static_cast<int64_t>(traffic.by_worker()));
        }
        side.disconnect();
      },
      [&](Side& side) {
        side.connect();
        {
          Traffic traffic(side);
          while (traffic.receive()) {
          }
          // Both sides report the same path for each message.
          EXPECT_EQ(side.hear_number(), static_cast<int64_t>(traffic.by_worker()));
        }
        side.disconnect();
      });
}

TEST(GpuWorker, TakesMessagesThatComeOften) {
  run_traffic(with_worker(), [](Side&, Traffic& traffic) {
    while (traffic.by_worker() < kEnough) traffic.send();
  });
}

TEST(GpuWorker, IsNotThereUnlessItIsAskedFor) {
  run_traffic(between_gpus(MemoryKind::kMalloc), [](Side&, Traffic& traffic) {
    for (int i = 0; i < 50; ++i) traffic.send();
    EXPECT_EQ(traffic.by_worker(), 0u);
    EXPECT_EQ(fake_driver().calls("cuLaunchKernel"), 0u);
  });
}

TEST(GpuWorker, IsNotThereWhereLaunchesBlock) {
  LinkKind kind = with_faked_worker();
  kind.env["CUDA_LAUNCH_BLOCKING"] = "1";
  run_traffic(kind, [](Side&, Traffic& traffic) {
    for (int i = 0; i < 50; ++i) traffic.send();
    EXPECT_EQ(fake_driver().calls("cuLaunchKernel"), 0u);
  });
}

// Processes on one GPU take turns, and a persistent kernel would take those of the others.
TEST(GpuWorker, IsNotThereWhereOthersCompute) {
  LinkKind kind = with_faked_worker();
  kind.env["ONEHOP_NVML_LIBRARY"] = FAKE_CUDA_LIBRARY;
  for (int processes : {1, 2}) {
    kind.env["FAKE_NVML"] = "processes=" + std::to_string(processes);
    run_traffic(kind, [&](Side&, Traffic& traffic) {
      if (processes == 1) {
        while (traffic.by_worker() < kEnough) traffic.send();
      }
      for (int i = 0; i < 50; ++i) traffic.send();
      EXPECT_EQ(fake_driver().calls("cuLaunchKernel") > 0, processes == 1);
    });
  }
}

// Single ones would not use the worker; beside other traffic it takes them.
TEST(GpuWorker, TakesPutsAndGets) {
  run_apart(
      with_worker(),
      [](Side& side) {
        side.connect();
        {
          Traffic traffic(side);
          onehop::RemoteRegion remote = side.peer().attach(side.hear());
          std::atomic<bool> done{false};
          std::thread thread([&] {
            Buffer out = side.buffer(kSize);
            Buffer in = side.buffer(kSize);
            size_t puts = 0;
            size_t gets = 0;
            for (uint64_t seed = 0; puts < 5 || gets < 5; ++seed) {
              out.fill(seed);
              in.poison();
              size_t at = seed * 48 % (kSpace - kSize);
              oh_path put = side.peer().put(out.data(), remote, at, kSize).wait(20s).path;
              oh_path get = side.peer().get(in.data(), remote, at, kSize).wait(20s).path;
              EXPECT_TRUE(in.holds(seed, kSize)) << seed;
              puts += put == OH_PATH_WORKER;
              gets += get == OH_PATH_WORKER;
            }
            done = true;
          });
          while (!done) traffic.send();
          thread.join();
          traffic.stop();
        }
        side.disconnect();
      },
      [](Side& side) {
        side.connect();
        {
          Traffic traffic(side);
          Buffer buffer = side.buffer(kSpace);
          onehop::Region region = side.endpoint().register_memory(buffer.data(), kSpace);
          side.tell(region.descriptor());
          while (traffic.receive()) {
          }
        }
        side.disconnect();
      });
}

struct Action {
  const char* name;
  void (*run)(Side& side);
};

class GpuWorkerBeside : public ::testing::TestWithParam<Action> {};

// Each call returns, repeatedly, while messages keep arriving.
TEST_P(GpuWorkerBeside, EndsUnderTraffic) {
  run_traffic(with_worker(), [](Side& side, Traffic& traffic) {
    constexpr int kTimes = 20;
    std::atomic<int> done{0};
    std::vector<double> took;  // milliseconds
    std::thread thread([&] {
      for (; done < kTimes; ++done) {
        auto begin = std::chrono::steady_clock::now();
        GetParam().run(side);
        took.push_back(
            std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
                .count());
      }
    });
    while (done < kTimes || traffic.by_worker() < kEnough) traffic.send();
    thread.join();
    if (!std::getenv("SHOW_TIMES")) return;
    std::sort(took.begin(), took.end());
    std::printf("%s beside %llu messages by the worker: p50 %.3f ms, most %.3f ms\n",
                GetParam().name, static_cast<unsigned long long>(traffic.by_worker()),
                took[kTimes / 2], took.back());
  });
}

constexpr Action kActions[] = {
    {"FirstLaunch", [](Side&) { launch_first_kernel(); }},
    {"Free",
     [](Side&) { release(MemoryKind::kMalloc, allocate(MemoryKind::kMalloc, kSpace), kSpace); }},
    {"Synchronize", [](Side&) { synchronize_device(); }},
    {"HostFree",
     [](Side&) { release(MemoryKind::kPinned, allocate(MemoryKind::kPinned, kSpace), kSpace); }},
    {"Capture",
     [](Side& side) {
       Buffer to = side.buffer(kSize);
       Buffer from = side.buffer(kSize);
       capture_copy(to.data(), from.data(), kSize);
     }},
    {"Replay",
     [](Side& side) {
       Buffer to = side.buffer(kSize);
       Buffer from = side.buffer(kSize);
       void* stream = make_stream();
       void* graph = capture_graph(stream, [&] { copy_on(stream, to.data(), from.data(), kSize); });
       for (uint64_t seed = 0; seed < 3; ++seed) {
         from.fill(seed);
         to.poison();
         launch_graph(graph, stream);
         synchronize_stream(stream);
         EXPECT_TRUE(to.holds(seed, kSize)) << seed;
       }
       destroy_graph(graph);
       destroy_stream(stream);
     }},
    // These share the worker.
    {"Endpoints",
     [](Side&) {
       auto options = onehop::detail::sized<oh_endpoint_options>();
       options.device = "cuda:0";
       oh_endpoint* endpoint = nullptr;
       ASSERT_EQ(oh_endpoint_create(&options, &endpoint), OH_OK);
       oh_endpoint_destroy(endpoint);
     }},
};

INSTANTIATE_TEST_SUITE_P(Gpu, GpuWorkerBeside, ::testing::ValuesIn(kActions),
                         [](const auto& test) { return test.param.name; });

// The peer is killed under traffic: operations in flight end, and the worker serves the next peer.
TEST(GpuWorker, OutlivesAPeer) {
  SharedDevices devices;
  LinkKind kind = with_worker();
  kind.env["FAKE_CUDA_STATE"] = devices.path();
  auto serve = [](Side& side, int limit) {
    side.connect();
    Traffic traffic(side);
    for (int i = 0; traffic.receive(); ++i) {
      if (i == limit) kill(getpid(), SIGKILL);
    }
    side.disconnect();
  };
  run_apart_with_victim(
      kind,
      [&](Side& victim, Side& next) {
        use_device(kind.driver, kind.device[0]);
        {
          victim.connect();
          Traffic traffic(victim);
          EXPECT_EQ(status_of([&] {
                      while (true) traffic.send();
                    }),
                    OH_ERR_PEER_LOST);
        }
        victim.drop_peer();
        next.connect();
        {
          Traffic traffic(next);
          while (traffic.by_worker() < kEnough) traffic.send();
          traffic.stop();
        }
        next.disconnect();
        victim.disconnect();
      },
      [&](Side& side) { serve(side, 50); }, [&](Side& side) { serve(side, -1); });
}

}  // namespace
}  // namespace conformance::gpu_worker
