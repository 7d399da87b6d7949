// SPDX-License-Identifier: Apache-2.0
//
// The API in NCCL's shape: two ranks, each on its own device.
#include "onehop/nccl.h"

#include <cstring>

#include "conformance/gpu_stream.h"

namespace conformance::nccl_shape {
namespace {

constexpr size_t kLarge = 3'000'001;

#define EXPECT_SUCCESS(call) EXPECT_EQ(call, ohSuccess) << oh_error_text()
#define ASSERT_SUCCESS(call) ASSERT_EQ(call, ohSuccess) << oh_error_text()

// One rank and its stream; side 0 creates the unique id.
struct Rank {
  explicit Rank(Side& ours) : side(ours) {
    ohUniqueId id;
    if (side.number() == 0) {
      EXPECT_SUCCESS(ohGetUniqueId(&id));
      side.tell({id.internal, id.internal + sizeof(id)});
    } else {
      onehop::Bytes heard = side.hear();
      EXPECT_EQ(heard.size(), sizeof(id));
      std::memcpy(id.internal, heard.data(), sizeof(id));
    }
    int ordinal = side.kind().device[side.number()];
    use_device(side.kind().driver, ordinal);
    std::string device = "cuda:" + std::to_string(ordinal);
    ohConfig_t config{sizeof(config), device.c_str(), 20'000'000'000};
    EXPECT_SUCCESS(ohCommInitRankConfig(&comm, 2, id, side.number(), &config));
    stream = make_stream();
  }
  ~Rank() {
    destroy_stream(stream);
    EXPECT_SUCCESS(ohCommDestroy(comm));
  }
  void expect_no_failure() const {
    ohResult_t failure = ohInternalError;
    EXPECT_SUCCESS(ohCommGetAsyncError(comm, &failure));
    EXPECT_EQ(failure, ohSuccess);
  }
  int other() const { return 1 - side.number(); }
  Buffer filled(size_t size, uint64_t seed) const {
    Buffer buffer = side.buffer(size);
    buffer.fill(seed);
    return buffer;
  }
  Buffer empty(size_t size) const {
    Buffer buffer = side.buffer(size);
    buffer.poison();
    return buffer;
  }

  Side& side;
  ohComm_t comm = nullptr;
  void* stream = nullptr;
};

void run_ranks(const std::function<void(Rank&)>& both) {
  auto role = [&](Side& side) {
    Rank rank(side);
    ASSERT_NE(rank.comm, nullptr);
    both(rank);
    rank.side.sync();
  };
  run_apart(real_if_wanted(between_gpus(MemoryKind::kMalloc)), role, role);
}

TEST(GpuNcclShape, RanksKnowThemselves) {
  run_ranks([](Rank& rank) {
    int value = -1;
    EXPECT_SUCCESS(ohCommCount(rank.comm, &value));
    EXPECT_EQ(value, 2);
    EXPECT_SUCCESS(ohCommUserRank(rank.comm, &value));
    EXPECT_EQ(value, rank.side.number());
  });
}

// Of 8 bytes each: a stream's sends and receives match in order.
TEST(GpuNcclShape, MessagesMatchInOrder) {
  run_ranks([](Rank& rank) {
    std::vector<Buffer> buffers;
    for (uint64_t i = 0; i < 50; ++i) {
      bool sends = rank.side.number() == 0;
      buffers.push_back(sends ? rank.filled(64, i) : rank.empty(64));
      void* data = buffers.back().data();
      if (sends) {
        ASSERT_SUCCESS(ohSend(data, 16, ohFloat32, rank.other(), rank.comm, rank.stream));
      } else {
        ASSERT_SUCCESS(ohRecv(data, 8, ohDouble, rank.other(), rank.comm, rank.stream));
      }
    }
    synchronize_stream(rank.stream);
    for (uint64_t i = 0; i < buffers.size(); ++i) EXPECT_TRUE(buffers[i].holds(i, 64)) << i;
    rank.expect_no_failure();
  });
}

// Large messages, in both directions at once, several between the same ranks, and in nested groups.
TEST(GpuNcclShape, AGroupExchanges) {
  run_ranks([](Rank& rank) {
    std::vector<Buffer> sent;
    std::vector<Buffer> received;
    auto seed = [](int number, int i) { return static_cast<uint64_t>(10 * number + i); };
    EXPECT_SUCCESS(ohGroupStart());
    for (int i = 0; i < 3; ++i) {
      sent.push_back(rank.filled(kLarge, seed(rank.side.number(), i)));
      received.push_back(rank.empty(kLarge));
      EXPECT_SUCCESS(ohGroupStart());
      EXPECT_SUCCESS(
          ohSend(sent.back().data(), kLarge, ohInt8, rank.other(), rank.comm, rank.stream));
      EXPECT_SUCCESS(
          ohRecv(received.back().data(), kLarge, ohInt8, rank.other(), rank.comm, rank.stream));
      EXPECT_SUCCESS(ohGroupEnd());
    }
    ASSERT_SUCCESS(ohGroupEnd());
    synchronize_stream(rank.stream);
    for (int i = 0; i < 3; ++i) EXPECT_TRUE(received[i].holds(seed(rank.other(), i), kLarge)) << i;
    rank.expect_no_failure();
  });
}

TEST(GpuNcclShape, AReceiveThatIsTooShortIsTold) {
  run_ranks([](Rank& rank) {
    Buffer buffer = rank.filled(100, 1);
    bool sends = rank.side.number() == 0;
    if (sends) {
      ASSERT_SUCCESS(ohSend(buffer.data(), 100, ohUint8, 1, rank.comm, rank.stream));
    } else {
      ASSERT_SUCCESS(ohRecv(buffer.data(), 10, ohUint8, 0, rank.comm, rank.stream));
    }
    synchronize_stream(rank.stream);
    if (sends) return;
    ohResult_t failure = ohSuccess;
    EXPECT_TRUE(eventually([&] {
      EXPECT_SUCCESS(ohCommGetAsyncError(rank.comm, &failure));
      return failure != ohSuccess;
    }));
    EXPECT_EQ(failure, ohInvalidUsage);
    EXPECT_SUCCESS(ohCommGetAsyncError(rank.comm, &failure));
    EXPECT_EQ(failure, ohInvalidUsage);  // the error stays
  });
}

TEST(GpuNcclShape, WarmedUpPairsAreCaptured) {
  run_ranks([](Rank& rank) {
    EXPECT_SUCCESS(ohCommWarmup(rank.comm, nullptr, 0));
    bool sends = rank.side.number() == 0;
    Buffer buffer = sends ? rank.filled(64, 5) : rank.empty(64);
    void* graph = capture_graph(rank.stream, [&] {
      if (sends) {
        EXPECT_SUCCESS(ohSend(buffer.data(), 64, ohUint8, 1, rank.comm, rank.stream));
      } else {
        EXPECT_SUCCESS(ohRecv(buffer.data(), 64, ohUint8, 0, rank.comm, rank.stream));
      }
    });
    for (uint64_t seed = 6; seed < 9; ++seed) {
      if (sends) buffer.fill(seed);
      launch_graph(graph, rank.stream);
      synchronize_stream(rank.stream);
      EXPECT_TRUE(buffer.holds(seed, 64)) << seed;
    }
    destroy_graph(graph);
    rank.expect_no_failure();
  });
}

TEST(GpuNcclShape, WrongArgumentsAreRefused) {
  run_ranks([](Rank& rank) {
    Buffer buffer = rank.empty(8);
    auto send = [&](size_t count, int type, int peer) {
      return ohSend(buffer.data(), count, static_cast<ohDataType_t>(type), peer, rank.comm,
                    rank.stream);
    };
    EXPECT_EQ(send(1, ohNumTypes, rank.other()), ohInvalidArgument);
    EXPECT_EQ(send(1, 15, rank.other()), ohInvalidArgument);
    EXPECT_EQ(send(SIZE_MAX / 2, ohInt64, rank.other()), ohInvalidArgument);
    EXPECT_EQ(send(1, ohInt64, 2), ohInvalidArgument);
    EXPECT_EQ(send(1, ohInt64, -1), ohInvalidArgument);
    EXPECT_EQ(ohSend(buffer.data(), 1, ohInt8, 0, nullptr, rank.stream), ohInvalidArgument);
    EXPECT_EQ(ohGroupEnd(), ohInvalidArgument);
    ohComm_t comm = nullptr;
    EXPECT_EQ(ohCommInitRank(&comm, 2, ohUniqueId{}, 0), ohInvalidArgument);
    EXPECT_EQ(ohCommInitRank(&comm, 2, ohUniqueId{}, 2), ohInvalidArgument);
    ohUniqueId id{{1}};  // of one byte; this thread has set no device
    EXPECT_EQ(ohCommInitRank(&comm, 2, id, 0), ohSystemError);
    EXPECT_NE(std::string(oh_error_text()).find("cudaSetDevice"), std::string::npos);
    EXPECT_EQ(comm, nullptr);
  });
}

TEST(NcclShape, ValuesAreThoseOfNccl) {
  EXPECT_EQ(ohFloat16, 6);
  EXPECT_EQ(ohBfloat16, 9);
  EXPECT_EQ(ohFloat8e5m2, 11);
  EXPECT_EQ(ohInProgress, 7);
  for (int result = ohSuccess; result <= ohInProgress; ++result) {
    EXPECT_STRNE(ohGetErrorString(static_cast<ohResult_t>(result)), "unknown result code");
  }
  EXPECT_STREQ(ohGetErrorString(ohNumResults), "unknown result code");
}

}  // namespace
}  // namespace conformance::nccl_shape
