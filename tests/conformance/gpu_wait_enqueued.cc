// SPDX-License-Identifier: Apache-2.0
//
// Streams that wait instead of the host: oh_request_wait_enqueued. The host continues once a copy
// engine has the message. From then on no local thread can keep the stream from completing, and the
// peer cannot block it for ever.
#include <signal.h>

#include <thread>

#include "conformance/fake_driver.h"

namespace conformance::gpu_wait_enqueued {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 1'000'000;

// First launches wait for the device, and block other threads' calls meanwhile.
LinkKind strict(LinkKind kind) {
  kind.env["FAKE_CUDA"] += ",blocking=device";
  kind.env["ONEHOP_PROGRESS_THREAD"] = "on";
  return kind;
}

LinkKind with(const char* name, MemoryKind first, MemoryKind second) {
  LinkKind kind = strict(between_gpus(first));
  kind.name = name;
  kind.memory[1] = second;
  return kind;
}

LinkKind threads(LinkKind kind) {
  kind.name = "threads_" + kind.name;
  kind.processes = false;
  return kind;
}

LinkKind one_gpu(LinkKind kind) {
  kind.name = "one_gpu_" + kind.name;
  kind.device[1] = 0;
  return kind;
}

// The sender's engine pushes, or the receiver's pulls: side 1 receives.
std::vector<LinkKind> by_engine() {
  using enum MemoryKind;
  LinkKind push = with("push", kMalloc, kMalloc);
  return {push, with("pull", kMalloc, kAsync), threads(push), one_gpu(push),
          threads(one_gpu(push))};
}
std::vector<LinkKind> between_processes() {
  using enum MemoryKind;
  return {with("push", kMalloc, kMalloc), with("pull", kMalloc, kAsync)};
}
// All paths; on those that need threads until the end, the host waits.
std::vector<LinkKind> all_kinds() {
  std::vector<LinkKind> kinds = by_engine();
  for (LinkKind& kind : device_message_kinds()) kinds.push_back(strict(kind));
  LinkKind worker = with("worker", MemoryKind::kMalloc, MemoryKind::kMalloc);
  worker.env["ONEHOP_WORKER"] = "1";
  kinds.push_back(worker);
  return kinds;
}

class GpuWaitEnqueued : public ::testing::TestWithParam<LinkKind> {};
class GpuEnqueuedByEngine : public ::testing::TestWithParam<LinkKind> {};
class GpuEnqueuedAndLost : public ::testing::TestWithParam<LinkKind> {};

// A stream, and a buffer that it copies to after its wait.
class Behind {
 public:
  explicit Behind(Side& side) : stream_(make_stream()), copy_(side.buffer(kSize)) {
    copy_.poison();
  }
  ~Behind() {
    synchronize_stream(stream_);
    destroy_stream(stream_);
  }
  Behind(const Behind&) = delete;
  Behind& operator=(const Behind&) = delete;
  void wait_for(onehop::Request& request, Buffer& received) {
    request.wait_enqueued(stream_, 20s);
    copy_on(stream_, copy_.data(), received.data(), kSize);
  }
  void* stream() const { return stream_; }
  const Buffer& copied() {
    synchronize_stream(stream_);
    return copy_;
  }
  const Buffer& copied_so_far() const { return copy_; }

 private:
  void* stream_;
  Buffer copy_;
};

// Work behind the receiver's wait sees the message, and work behind the sender's wait runs too late
// to overwrite it.
TEST_P(GpuWaitEnqueued, BothStreamsAreInOrder) {
  run_pair(
      GetParam(),
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        Buffer other = side.buffer(kSize);
        other.poison();
        void* stream = make_stream();
        for (size_t size : {size_t{0}, size_t{1}, size_t{5000}, kSize, kSize}) {
          mine.fill(size);
          side.sync();
          onehop::Request send = side.peer().isend(mine.data(), size, 1);
          send.wait_enqueued(stream, 20s);
          copy_on(stream, mine.data(), other.data(), kSize);
          synchronize_stream(stream);
          send.wait(20s);
          side.sync();
        }
        destroy_stream(stream);
      },
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        for (size_t size : {size_t{0}, size_t{1}, size_t{5000}, kSize, kSize}) {
          Behind behind[2] = {Behind(side), Behind(side)};
          mine.poison();
          {
            onehop::Request receive = side.peer().irecv(mine.data(), kSize, 1);
            side.sync();
            for (Behind& each : behind) each.wait_for(receive, mine);
            // The handle is released.
          }
          for (Behind& each : behind) EXPECT_TRUE(each.copied().holds(size, size));
          side.sync();
        }
      });
}

// The host continues while the sender's device is busy, and may launch kernels.
TEST_P(GpuEnqueuedByEngine, TheHostGoesOnAndLaunches) {
  run_pair(
      GetParam(),
      [](Side& side) {
        for (uint64_t round = 0; round < 3; ++round) {
          Buffer mine = side.buffer(kSize);
          Buffer fresh = side.buffer(kSize);
          mine.fill(1);
          fresh.fill(round);
          Blocked busy;
          busy.then_fill(mine, fresh);
          side.sync();
          // A message that the receiver pulls waits for the sender's host: the bytes must be ready.
          const bool pulls = side.kind().memory[1] == MemoryKind::kAsync;
          if (pulls) busy.release();
          onehop::Request send = side.peer().isend(mine.data(), kSize, 1, busy.after(true));
          void* stream = make_stream();
          send.wait_enqueued(stream, 20s);
          copy_on(stream, mine.data(), fresh.data(), 1);
          side.sync();  // from here on a launch of this process may block its other calls
          side.sync();  // the peer's host has continued, and launches
          busy.release();
          synchronize_stream(stream);
          send.wait(20s);
          destroy_stream(stream);
          side.sync();
        }
      },
      [](Side& side) {
        for (uint64_t round = 0; round < 3; ++round) {
          Buffer mine = side.buffer(kSize);
          mine.poison();
          Behind behind(side);
          onehop::Request receive = side.peer().irecv(mine.data(), kSize, 1);
          side.sync();
          behind.wait_for(receive, mine);
          if (side.kind().memory[1] != MemoryKind::kAsync) {
            EXPECT_FALSE(receive.test());
            EXPECT_FALSE(behind.copied_so_far().holds(round, kSize));
          }
          side.sync();
          std::thread launch([&] {
            use_device(side.kind().driver, side.kind().device[1]);
            launch_first_kernel();
          });
          side.sync();
          launch.join();
          EXPECT_TRUE(behind.copied().holds(round, kSize));
          receive.wait(20s);
          side.sync();
        }
      });
}

// Side 0 copies in both directions: its memory cannot be mapped.
LinkKind first_copies() { return with("one_side", MemoryKind::kAsync, MemoryKind::kMalloc); }

// Two ranks as in torch's 1F1B schedule: the second sends only after it has the first one's
// message, whose copy is not enqueued yet when its stream is to wait.
void exchange(const LinkKind& kind, bool enqueued) {
  run_pair(
      kind,
      [&](Side& side) {
        Buffer in = side.buffer(kSize);
        Buffer out = side.buffer(kSize);
        out.fill(1);
        void* stream = make_stream();
        onehop::Request receive = side.peer().irecv(in.data(), kSize, 1);
        onehop::Request send = side.peer().isend(out.data(), kSize, 2);
        if (!enqueued) receive.stream_wait(stream);
        std::thread launch([&] {
          use_device(kind.driver, kind.device[0]);
          if (enqueued) {
            side.sync();
            receive.wait_enqueued(stream, 20s);
          }
          launch_first_kernel();
        });
        if (!enqueued) {
          // The launch holds the lock, and waits for the stream.
          std::this_thread::sleep_for(100ms);
          side.sync();
          side.sync();  // the other side has given up
          EXPECT_TRUE(receive.cancel());
        }
        launch.join();
        synchronize_stream(stream);
        EXPECT_EQ(status_of([&] { receive.wait(20s); }), enqueued ? OH_OK : OH_ERR_CANCELLED);
        destroy_stream(stream);
        side.sync();
      },
      [&](Side& side) {
        Buffer in = side.buffer(kSize);
        Buffer out = side.buffer(kSize);
        side.sync();
        if (enqueued) {
          side.peer().recv(in.data(), kSize, 2, 20s);
          EXPECT_TRUE(in.holds(1, kSize));
          side.peer().send(out.data(), kSize, 1, 20s);
        } else {
          const oh_status status = status_of([&] { side.peer().recv(in.data(), kSize, 2, 500ms); });
          EXPECT_TRUE(status == OH_ERR_TIMEOUT || status == OH_ERR_IN_DOUBT) << status;
          side.sync();
        }
        side.sync();
      });
}

TEST(GpuExchange, WithStreamWaitStandsStill) { exchange(first_copies(), /*enqueued=*/false); }
TEST(GpuExchange, WithWaitEnqueuedGoesOn) { exchange(first_copies(), /*enqueued=*/true); }

// A stream that reaches its waits late finds slots that were reused meanwhile.
TEST_P(GpuEnqueuedByEngine, ALateStreamPassesSlotsThatWereUsedAgain) {
  constexpr uint64_t kMessages = 700;
  constexpr uint64_t kEach = 4096;
  auto both = [&](Side& side) {
    Buffer mine = side.buffer(kMessages * kEach);
    side.number() == 0 ? mine.fill(3) : mine.poison();
    Buffer other = side.buffer(kSize);
    void* stream = make_stream();
    std::atomic<bool> go{false};
    block_stream(stream, &go);
    for (uint64_t i = 0; i < kMessages; ++i) {
      uint8_t* const data = mine.data() + i * kEach;
      onehop::Request request = side.number() == 0 ? side.peer().isend(data, kEach, i)
                                                   : side.peer().irecv(data, kEach, i);
      request.wait_enqueued(stream, 20s);
    }
    side.sync();
    go.store(true);
    copy_on(stream, other.data(), other.data() + kSize / 2, 1);
    synchronize_stream(stream);
    EXPECT_TRUE(mine.holds(3, mine.size()));
    destroy_stream(stream);
    side.sync();
  };
  run_pair(GetParam(), both, both);
}

// The receiver abandons a message that the sender's engine copies: its stream continues, the
// sender's waits for the bytes, and the slot is reused.
TEST_P(GpuEnqueuedAndLost, ADeadlineLetsTheStreamGo) {
  run_pair(
      GetParam(),
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        {
          Blocked busy;
          side.sync();
          onehop::Request send = side.peer().isend(mine.data(), kSize, 1, busy.after(true));
          if (side.kind().memory[1] == MemoryKind::kAsync) busy.release();
          void* stream = make_stream();
          send.wait_enqueued(stream, 20s);
          side.sync();
          side.sync();
          busy.release();
          synchronize_stream(stream);
          destroy_stream(stream);
          (void)status_of([&] { send.wait(20s); });
        }
        for (uint64_t i = 0; i < 300; ++i) side.peer().send(mine.data(), 5000, 2, 20s);
        side.sync();
      },
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        void* stream = make_stream();
        const bool pulls = side.kind().memory[1] == MemoryKind::kAsync;
        if (pulls) fake_driver().hold_all();
        onehop::Request receive = side.peer().irecv(mine.data(), kSize, 1);
        side.sync();
        receive.wait_enqueued(stream, 20s);
        EXPECT_FALSE(receive.cancel());  // too late
        EXPECT_EQ(status_of([&] { receive.wait(20ms); }), OH_ERR_IN_DOUBT);
        EXPECT_FALSE(receive.buffer_released());
        // The local engine is waited for: it still writes there.
        if (pulls) fake_driver().release_all();
        synchronize_stream(stream);
        side.sync();
        side.sync();
        EXPECT_TRUE(eventually([&] {
          side.endpoint().progress();
          return receive.buffer_released();
        }));
        for (uint64_t i = 0; i < 300; ++i) side.peer().recv(mine.data(), kSize, 2, 20s);
        destroy_stream(stream);
        side.sync();
      });
}

// The link is closed while a stream waits, or before it reaches its wait.
TEST_P(GpuEnqueuedAndLost, ClosingLetsTheStreamGo) {
  for (bool late : {false, true}) {
    run_pair(
        GetParam(),
        [](Side& side) {
          Buffer mine = side.buffer(kSize);
          Blocked busy;
          side.sync();
          onehop::Request send = side.peer().isend(mine.data(), kSize, 1, busy.after(true));
          if (side.kind().memory[1] == MemoryKind::kAsync) busy.release();
          void* stream = make_stream();
          send.wait_enqueued(stream, 20s);
          side.sync();
          side.sync();  // the other side has closed the link, and its stream has passed
          busy.release();
          synchronize_stream(stream);
          destroy_stream(stream);
        },
        [late](Side& side) {
          Buffer mine = side.buffer(kSize);
          Buffer other = side.buffer(kSize);
          std::atomic<bool> go{!late};
          void* stream = make_stream();
          block_stream(stream, &go);
          onehop::Request receive = side.peer().irecv(mine.data(), kSize, 1);
          side.sync();
          receive.wait_enqueued(stream, 20s);
          copy_on(stream, other.data(), other.data() + kSize / 2, 1);
          side.sync();  // both wait
          side.drop_peer();
          go.store(true);
          synchronize_stream(stream);
          side.sync();
          destroy_stream(stream);
        });
  }
}

// Neither role runs in this process, which forks again.
void run_with_a_victim(const LinkKind& kind, const Role& survivor, const Role& victim) {
  auto survive = [&](Side& side, Side&) {
    side.connect();
    survivor(side);
    side.disconnect();
  };
  auto die = [&](Side& side) {
    side.connect();
    victim(side);
  };
  run_apart_with_victim(kind, survive, die, [](Side&) {});
}

// After "enqueued" the sender's process dies, and its engine with it: the word is never written.
TEST_P(GpuEnqueuedAndLost, AKilledPeerLetsTheStreamGo) {
  auto survivor = [](Side& side) {
    Buffer mine = side.buffer(kSize);
    mine.poison();
    const bool pulls = side.kind().memory[0] == MemoryKind::kAsync;
    Behind behind(side);
    if (pulls) fake_driver().hold_all();
    onehop::Request receive = side.peer().irecv(mine.data(), kSize, 1);
    side.sync();
    behind.wait_for(receive, mine);
    EXPECT_FALSE(receive.test());
    std::thread launch([&] {
      use_device(side.kind().driver, side.kind().device[0]);
      launch_first_kernel();
    });
    kill(side.other_process(), SIGKILL);
    if (pulls) fake_driver().release_all();
    launch.join();
    synchronize_stream(behind.stream());
    const oh_status status = status_of([&] { receive.wait(20s); });
    // The local engine may have finished with the dead process's memory.
    EXPECT_TRUE(status == OH_ERR_PEER_LOST || status == OH_ERR_IN_DOUBT ||
                (pulls && status == OH_OK))
        << status;
    EXPECT_TRUE(eventually([&] { return receive.buffer_released(); }));
  };
  auto victim = [](Side& side) {
    Buffer mine = side.buffer(kSize);
    if (side.kind().memory[0] != MemoryKind::kAsync) fake_driver().hold_all();
    side.sync();
    onehop::Request send = side.peer().isend(mine.data(), kSize, 1);
    while (true) (void)oh_request_poll(send.get(), 1'000'000);
  };
  LinkKind kind = GetParam();
  std::swap(kind.memory[0], kind.memory[1]);
  run_with_a_victim(kind, survivor, victim);
}

// The local engine's copy to a dying process still completes.
TEST_P(GpuEnqueuedAndLost, AKilledReceiverLetsTheStreamGo) {
  run_with_a_victim(
      GetParam(),
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        const bool pulls = side.kind().memory[1] == MemoryKind::kAsync;
        void* stream = make_stream();
        if (!pulls) fake_driver().hold_all();
        side.sync();
        onehop::Request send = side.peer().isend(mine.data(), kSize, 1);
        send.wait_enqueued(stream, 20s);
        kill(side.other_process(), SIGKILL);
        const oh_status status = status_of([&] { send.wait(20s); });
        EXPECT_TRUE(status == OH_ERR_PEER_LOST || status == OH_ERR_IN_DOUBT) << status;
        fake_driver().release_all();
        synchronize_stream(stream);
        destroy_stream(stream);
        EXPECT_TRUE(eventually([&] {
          side.endpoint().progress();
          return send.buffer_released();
        }));
      },
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        if (side.kind().memory[1] == MemoryKind::kAsync) fake_driver().hold_all();
        onehop::Request receive = side.peer().irecv(mine.data(), kSize, 1);
        side.sync();
        while (true) (void)oh_request_poll(receive.get(), 1'000'000);
      });
}

// Until the message is enqueued the call behaves like wait(): for its deadline, its errors, and
// ended requests.
TEST_P(GpuWaitEnqueued, UntilThenItWaitsAsTheHostDoes) {
  run_pair(
      GetParam(), [](Side& side) { side.sync(); },
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        void* stream = make_stream();
        onehop::Request late = side.peer().irecv(mine.data(), kSize, 1);
        EXPECT_EQ(oh_request_poll_enqueued(late.get(), stream, 1'000'000), OH_IN_PROGRESS);
        EXPECT_THROW(late.wait_enqueued(stream, 10ms), onehop::TimeoutError);
        EXPECT_THROW(late.wait_enqueued(stream, 10ms), onehop::TimeoutError);
        onehop::Request any = side.endpoint().irecv(mine.data(), kSize, 9);
        EXPECT_THROW(any.wait_enqueued(stream, 10ms), onehop::TimeoutError);
        onehop::Request refused = side.peer().irecv(mine.data(), kSize, 1);
        void* graph = capture_graph(stream, [&] {
          EXPECT_THROW(refused.wait_enqueued(stream, 10ms), onehop::OperationError);
        });
        destroy_graph(graph);
        EXPECT_TRUE(refused.cancel());
        synchronize_stream(stream);  // it waits for nothing
        destroy_stream(stream);
        side.sync();
      });
}

TEST(GpuWaitsEnqueued, AnEndpointOfTheHostIsRefused) {
  onehop::Endpoint endpoint;
  uint8_t byte = 0;
  onehop::Request receive = endpoint.irecv(&byte, 1, 0);
  EXPECT_EQ(oh_request_wait_enqueued(receive.get(), nullptr, 1), OH_ERR_INVALID);
  EXPECT_NE(std::string(oh_error_text()).find("no device"), std::string::npos);
}

std::string name(const ::testing::TestParamInfo<LinkKind>& test) { return test.param.name; }

INSTANTIATE_TEST_SUITE_P(Kinds, GpuWaitEnqueued, ::testing::ValuesIn(all_kinds()), name);
INSTANTIATE_TEST_SUITE_P(Kinds, GpuEnqueuedByEngine, ::testing::ValuesIn(by_engine()), name);
INSTANTIATE_TEST_SUITE_P(Kinds, GpuEnqueuedAndLost, ::testing::ValuesIn(between_processes()), name);

}  // namespace
}  // namespace conformance::gpu_wait_enqueued
