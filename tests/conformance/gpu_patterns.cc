// SPDX-License-Identifier: Apache-2.0
//
// Patterns between the ranks of a communicator, each rank a process: two ranks, and more than there
// are devices. Each rank also exchanges with itself.
#include "onehop/onehop_patterns.hpp"

#include <cstring>
#include <numeric>

#include "conformance/gpu_stream.h"

namespace conformance::gpu_patterns {
namespace {

namespace patterns = onehop::patterns;

constexpr int64_t kPatience = 20'000'000'000;

// One rank, on a device that it may share.
class Rank {
 public:
  Rank(const LinkKind& kind, uint32_t rank, uint32_t size, const onehop::Bytes& id)
      : kind_(kind), comm_(make(kind, rank, size, id)), stream_(make_stream()) {}
  ~Rank() { destroy_stream(stream_); }
  Rank(const Rank&) = delete;
  Rank& operator=(const Rank&) = delete;

  uint32_t number() const { return comm_.rank(); }
  uint32_t size() const { return comm_.size(); }
  onehop::CommunicatorOnStream on() { return comm_.on(stream_); }
  void* stream() { return stream_; }
  void warm_up() {
    std::vector<int32_t> all(size());
    std::iota(all.begin(), all.end(), 0);
    comm_.warmup(all, onehop::Timeout(kPatience));
  }
  Buffer empty(size_t size) const {
    Buffer buffer(size, kind_.memory[0]);
    buffer.poison();
    return buffer;
  }
  Buffer filled(size_t size, uint64_t seed) const {
    Buffer buffer(size, kind_.memory[0]);
    buffer.fill(seed);
    return buffer;
  }
  void finish() { synchronize_stream(stream_); }
  oh_status error_with(uint32_t rank) { return oh_peer_async_error(comm_.peer(rank).get()); }
  void end() {
    finish();
    for (uint32_t rank = 0; rank < size(); ++rank) {
      EXPECT_EQ(error_with(rank), OH_OK) << "with rank " << rank << ": " << oh_error_text();
    }
    comm_.barrier(onehop::Timeout(kPatience));
  }

 private:
  static onehop::Communicator make(const LinkKind& kind, uint32_t rank, uint32_t size,
                                   const onehop::Bytes& id) {
    const int ordinal = kind.device[rank % 2];
    use_device(kind.driver, ordinal);
    const std::string device = "cuda:" + std::to_string(ordinal);
    auto options = onehop::detail::sized<oh_comm_options>();
    options.rank = rank;
    options.size = size;
    options.unique_id = id.data();
    options.unique_id_size = id.size();
    options.timeout_ns = kPatience;
    options.endpoint = onehop::detail::sized<oh_endpoint_options>();
    options.endpoint.device = device.c_str();
    return onehop::Communicator(options);
  }

  const LinkKind& kind_;
  onehop::Communicator comm_;
  void* stream_;
};

// The seed of the bytes from one rank to another.
uint64_t seed_of(uint64_t from, uint64_t to, uint64_t round = 0) {
  return 10'000 * round + 100 * from + to;
}
const patterns::Options kLane{3, onehop::Timeout(kPatience)};

void run_all(uint32_t size, const std::function<void(Rank&)>& role) {
  const LinkKind kind = real_if_wanted(between_gpus(MemoryKind::kMalloc));
  run_ranks(kind, size, [&](uint32_t number, const onehop::Bytes& id) {
    Rank rank(kind, number, size, id);
    role(rank);
    rank.end();
  });
}

class GpuPatterns : public ::testing::TestWithParam<uint32_t> {};

// Send to the next rank, receive from the previous one: with two ranks the same one.
TEST_P(GpuPatterns, EachPassesSomethingOn) {
  run_all(GetParam(), [](Rank& rank) {
    const uint32_t next = (rank.number() + 1) % rank.size();
    const uint32_t before = (rank.number() + rank.size() - 1) % rank.size();
    for (size_t size : {size_t{0}, size_t{1}, size_t{5'000}, size_t{1'000'001}}) {
      Buffer out = rank.filled(size + 1, seed_of(rank.number(), next, size));
      Buffer in = rank.empty(size + 1);
      patterns::sendrecv(rank.on(), {next, out.data(), size}, {before, in.data(), size}, kLane);
      rank.finish();
      EXPECT_TRUE(in.holds(seed_of(before, rank.number(), size), size)) << size << " bytes";
      EXPECT_EQ(in.at(size), kPoison);
    }
  });
}

// One to many, then many to one; the one rank is among the many.
TEST_P(GpuPatterns, OneToManyAndBack) {
  constexpr size_t kSize = 400'000;
  run_all(GetParam(), [](Rank& rank) {
    const bool leads = rank.number() == 0;
    std::vector<Buffer> out;
    std::vector<Buffer> in;
    std::vector<patterns::Out> outs;
    std::vector<patterns::In> ins;
    for (uint32_t other = 0; leads && other < rank.size(); ++other) {
      const size_t size = kSize + other;
      out.push_back(rank.filled(size, seed_of(0, other)));
      in.push_back(rank.empty(size));
      outs.push_back({other, out.back().data(), size});
      ins.push_back({other, in.back().data(), size});
    }
    const size_t size = kSize + rank.number();
    Buffer mine = rank.empty(size);
    // Its own part is large: its send and receive must be in one group.
    onehop::Group group;
    if (leads) patterns::send_many(rank.on(), outs, kLane);
    patterns::recv_many(rank.on(), {{0, mine.data(), size}}, kLane);
    group.end();
    onehop::Group back;
    patterns::send_many(rank.on(), {{0, mine.data(), size}}, kLane);
    if (leads) patterns::recv_many(rank.on(), ins, kLane);
    back.end();
    rank.finish();
    EXPECT_TRUE(mine.holds(seed_of(0, rank.number()), size));
    for (uint32_t other = 0; leads && other < rank.size(); ++other) {
      EXPECT_TRUE(in[other].holds(seed_of(0, other), kSize + other)) << "from rank " << other;
    }
  });
}

// Bytes that one rank sends to another: none, a few, or more than any ring holds.
size_t part_of(uint32_t from, uint32_t to, uint32_t round) {
  constexpr size_t kParts[] = {0, 17, 3'000, 70'001, 300'000};
  return kParts[(2 * from + 3 * to + round) % 5];
}

TEST_P(GpuPatterns, PartsOfAllSizesFromAllToAll) {
  run_all(GetParam(), [](Rank& rank) {
    for (uint32_t round = 0; round < 5; ++round) {
      patterns::OutParts out{};
      patterns::InParts in{};
      onehop::Bytes bytes;
      size_t room = 0;
      for (uint32_t other = 0; other < rank.size(); ++other) {
        const size_t size = part_of(rank.number(), other, round);
        const onehop::Bytes part = pattern(seed_of(rank.number(), other, round), size);
        out.offsets.push_back(bytes.size());
        out.sizes.push_back(size);
        bytes.insert(bytes.end(), part.begin(), part.end());
        // At the receiver the parts are not contiguous.
        in.offsets.push_back(room + 5);
        in.capacities.push_back(part_of(other, rank.number(), round));
        room = in.offsets.back() + in.capacities.back();
      }
      Buffer from = rank.empty(bytes.size() + 1);
      write_device(from.data(), bytes.data(), bytes.size());
      Buffer to = rank.empty(room + 1);
      out.data = from.data();
      in.data = to.data();
      patterns::all_to_all_v(rank.on(), out, in, kLane);
      rank.finish();
      onehop::Bytes expected(room + 1, kPoison);
      for (uint32_t other = 0; other < rank.size(); ++other) {
        const onehop::Bytes part =
            pattern(seed_of(other, rank.number(), round), in.capacities[other]);
        std::copy(part.begin(), part.end(),
                  expected.begin() + static_cast<std::ptrdiff_t>(in.offsets[other]));
      }
      EXPECT_EQ(to.bytes(), expected) << "round " << round;
    }
    patterns::OutParts none{};
    patterns::InParts nowhere{};
    EXPECT_EQ(status_of([&] { patterns::all_to_all_v(rank.on(), none, nowhere); }), OH_ERR_INVALID);
  });
}

constexpr size_t kCapacity = 300'000;

// A rank's dispatch: its rows, their valid bytes, and the places of other ranks' rows.
struct Dispatch {
  explicit Dispatch(Rank& ours)
      : rank(ours),
        out(rank.empty(rank.size() * kCapacity)),
        in(rank.empty(rank.size() * kCapacity)),
        out_sizes(rank.empty(rank.size() * sizeof(uint64_t))),
        in_sizes(rank.empty(rank.size() * sizeof(uint64_t))) {}

  void prepare(uint32_t round) {
    in.poison();
    in_sizes.poison();
    std::vector<uint64_t> sizes;
    for (uint32_t other = 0; other < rank.size(); ++other) {
      sizes.push_back(part_of(rank.number(), other, round));
      const onehop::Bytes rows = pattern(seed_of(rank.number(), other, round), kCapacity);
      write_device(out.data() + other * kCapacity, rows.data(), rows.size());
    }
    write_device(out_sizes.data(), sizes.data(), sizes.size() * sizeof(uint64_t));
  }
  void enqueue() {
    patterns::dispatch(rank.on(),
                       {out.data(), reinterpret_cast<const uint64_t*>(out_sizes.data()), kCapacity},
                       {in.data(), reinterpret_cast<uint64_t*>(in_sizes.data()), kCapacity}, kLane);
  }
  void expect(uint32_t round) const {
    std::vector<uint64_t> sizes(rank.size());
    const onehop::Bytes raw = in_sizes.bytes();
    std::memcpy(sizes.data(), raw.data(), raw.size());
    onehop::Bytes expected(rank.size() * kCapacity, kPoison);
    for (uint32_t other = 0; other < rank.size(); ++other) {
      const size_t size = part_of(other, rank.number(), round);
      EXPECT_EQ(sizes[other], size) << "from rank " << other;
      const onehop::Bytes part = pattern(seed_of(other, rank.number(), round), kCapacity);
      std::copy_n(part.begin(), size,
                  expected.begin() + static_cast<std::ptrdiff_t>(other * kCapacity));
    }
    EXPECT_EQ(in.bytes(), expected) << "round " << round;
  }

  Rank& rank;
  Buffer out;
  Buffer in;
  Buffer out_sizes;
  Buffer in_sizes;
};

TEST_P(GpuPatterns, RowsOfWhichOnlyTheDeviceKnowsHowMany) {
  run_all(GetParam(), [](Rank& rank) {
    Dispatch rows(rank);
    for (uint32_t round = 0; round < 5; ++round) {
      rows.prepare(round);
      rows.enqueue();
      rank.finish();
      rows.expect(round);
    }
  });
}

TEST_P(GpuPatterns, ADispatchIsReplayedWithOtherCounts) {
  run_all(GetParam(), [](Rank& rank) {
    rank.warm_up();
    Dispatch rows(rank);
    void* graph = capture_graph(rank.stream(), [&] { rows.enqueue(); });
    for (uint32_t round = 0; round < 20; ++round) {
      rows.prepare(round);
      launch_graph(graph, rank.stream());
      rank.finish();
      rows.expect(round);
    }
    destroy_graph(graph);
  });
}

// Rank 0 announces more for rank 1 than its part of the buffer holds.
TEST(GpuPatternFailures, MoreRowsThanTheCapacityAreToldToTheSender) {
  run_all(2, [](Rank& rank) {
    Dispatch rows(rank);
    rows.prepare(0);
    if (rank.number() == 0) {
      const uint64_t much = kCapacity + 1;
      write_device(rows.out_sizes.data() + sizeof(uint64_t), &much, sizeof(much));
    }
    rows.enqueue();
    rank.finish();
    if (rank.number() == 0) {
      EXPECT_EQ(rank.error_with(1), OH_ERR_RANGE) << oh_error_text();
      return;
    }
    uint64_t came = 0;
    read_device(&came, rows.in_sizes.data(), sizeof(came));
    EXPECT_EQ(came, kCapacity);
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, GpuPatterns, ::testing::Values(2u, 4u),
                         ::testing::PrintToStringParamName());

}  // namespace
}  // namespace conformance::gpu_patterns
