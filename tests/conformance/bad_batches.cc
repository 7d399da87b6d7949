// SPDX-License-Identifier: Apache-2.0
//
// Empty batches, batches with overlapping blocks, and batches that are rejected.
#include <chrono>
#include <cstring>

#include "conformance/batches.h"

namespace conformance::bad_batches {
namespace {

using namespace std::chrono_literals;

// Calls `look` with each kind of batch call.
void for_all_verbs(Side& side, onehop::RemoteRegion& remote, const oh_batch& batch,
                   const std::function<void(const char*, const std::function<void()>&)>& look) {
  onehop::Peer& peer = side.peer();
  look("put_batch", [&] { peer.put_batch(remote, batch).wait(20s); });
  look("get_batch", [&] { peer.get_batch(remote, batch).wait(20s); });
  look("prepare_put", [&] { peer.prepare_put(remote, batch).post().wait(20s); });
  look("prepare_get", [&] { peer.prepare_get(remote, batch).post().wait(20s); });
}

TEST_P(Conformance, BatchesOfNothingEndWell) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(1000);
        const uint64_t zeros[2] = {};
        oh_batch none{};  // without memory
        oh_batch no_blocks = batch_of(buffer);
        no_blocks.local_offsets = zeros;
        oh_batch empty = batch_of(buffer);
        empty.count = 2;
        empty.local_offsets = empty.remote_offsets = empty.lengths = zeros;
        for (int packed : {0, 1}) {
          for (oh_batch batch : {none, no_blocks, empty}) {
            batch.packed = packed;
            for_all_verbs(side, remote, batch, [&](const char* verb, const auto& call) {
              EXPECT_EQ(status_of(call), OH_OK) << verb << ": " << oh_error_text();
            });
          }
        }
        show(side);
      },
      owner(1000, 1, [](size_t, const onehop::Bytes& there) {
        EXPECT_EQ(there, onehop::Bytes(1000, 0xee));
      }));
}

struct BadBatch {
  const char* name;
  std::function<void(oh_batch&)> change;
  oh_status status;
  const char* text;
};

// Of 1,000 bytes on both sides.
std::vector<BadBatch> bad_batches() {
  static const uint64_t offsets[] = {0, 995, UINT64_MAX, 8};
  static const uint64_t lengths[] = {8, 8, 8, UINT64_MAX};
  static const uint64_t zeros[] = {0, 0, 0, 0};
  auto listed = [](oh_batch& batch) {
    batch.count = 1;
    batch.local_offsets = batch.remote_offsets = zeros;
    batch.lengths = lengths;
  };
  auto strided = [](oh_batch& batch) {
    batch.count = 2;
    batch.length = 8;
  };
  auto with = [](auto base, auto change) {
    return [=](oh_batch& batch) {
      base(batch);
      change(batch);
    };
  };
  using B = oh_batch;
  return {
      {"no lengths", with(listed, [](B& b) { b.lengths = nullptr; }), OH_ERR_INVALID, "arrays"},
      {"no local", with(listed, [](B& b) { b.local_offsets = nullptr; }), OH_ERR_INVALID, "arrays"},
      {"no remote", with(listed, [](B& b) { b.remote_offsets = nullptr; }), OH_ERR_INVALID,
       "arrays"},
      {"packed without lengths", with(listed, [](B& b) { b.packed = 1, b.lengths = nullptr; }),
       OH_ERR_INVALID, "arrays"},
      {"no memory", with(listed, [](B& b) { b.local = nullptr; }), OH_ERR_INVALID, "NULL"},
      {"local end", with(listed, [](B& b) { b.count = 2, b.local_offsets = offsets; }),
       OH_ERR_RANGE, "block 1"},
      {"remote end", with(listed, [](B& b) { b.count = 2, b.remote_offsets = offsets; }),
       OH_ERR_RANGE, "block 1"},
      {"offset and length overflow",
       with(listed, [](B& b) { b.count = 1, b.local_offsets = offsets + 2; }), OH_ERR_RANGE,
       "block 0"},
      {"remote offset and length overflow",
       with(listed, [](B& b) { b.count = 1, b.remote_offsets = offsets + 2; }), OH_ERR_RANGE,
       "block 0"},
      {"huge length", with(listed, [](B& b) { b.lengths = lengths + 3; }), OH_ERR_RANGE, "block 0"},
      {"packed beyond the end",
       with(listed, [](B& b) { b.packed = 1, b.count = 2, b.local_base = 990; }), OH_ERR_RANGE,
       "block 1"},
      {"packed overflow", with(listed, [](B& b) { b.packed = 1, b.local_base = UINT64_MAX - 4; }),
       OH_ERR_RANGE, "block 0"},
      {"stride beyond the end", with(strided, [](B& b) { b.remote_stride = 995; }), OH_ERR_RANGE,
       "block 1"},
      {"local stride beyond the end", with(strided, [](B& b) { b.local_stride = 995; }),
       OH_ERR_RANGE, "block 1"},
      {"stride overflow",
       with(strided, [](B& b) { b.count = 3, b.remote_stride = uint64_t{1} << 63; }), OH_ERR_RANGE,
       "block 1"},
      {"base and stride overflow",
       with(strided, [](B& b) { b.local_base = 8, b.local_stride = UINT64_MAX; }), OH_ERR_RANGE,
       "block 1"},
      {"too many", with(strided, [](B& b) { b.count = SIZE_MAX; }), OH_ERR_INVALID, "blocks"},
  };
}

TEST_P(Conformance, BadBatchesMoveNothing) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(1000);
        buffer.fill(1);
        for (const BadBatch& bad : bad_batches()) {
          oh_batch batch = batch_of(buffer);
          bad.change(batch);
          for_all_verbs(side, remote, batch, [&](const char* verb, const auto& call) {
            EXPECT_EQ(status_of(call), bad.status) << verb << ", " << bad.name;
            EXPECT_NE(std::string(oh_error_text()).find(bad.text), std::string::npos)
                << verb << ", " << bad.name << ": " << oh_error_text();
          });
        }
        EXPECT_TRUE(buffer.holds(1, 1000));
        oh_batch whole = batch_of(buffer);
        whole.struct_size = 0;
        oh_prepared_batch* prepared = nullptr;
        EXPECT_EQ(oh_peer_prepare_put(side.peer().get(), remote.get(), &whole, &prepared),
                  OH_ERR_INVALID);
        EXPECT_EQ(oh_peer_prepare_put(side.peer().get(), remote.get(), nullptr, &prepared),
                  OH_ERR_INVALID);
        EXPECT_EQ(oh_prepared_batch_post(nullptr, nullptr, nullptr), OH_ERR_INVALID);
        EXPECT_EQ(prepared, nullptr);
        oh_prepared_batch_release(nullptr);
        show(side);
      },
      owner(1000, 1, [](size_t, const onehop::Bytes& there) {
        EXPECT_EQ(there, onehop::Bytes(1000, 0xee));
      }));
}

// Overlapping blocks: each byte comes from one of them, and adjacent bytes stay unchanged.
TEST_P(Conformance, OverlappingBlocksDoNoHarm) {
  constexpr size_t kSpace = 64 * 1024;
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(kSpace);
        buffer.fill(1);
        // Device blocks may be separate transfers; gpu_prepared.cc uses as many blocks with the
        // kernel.
        const bool host = side.kind().device[0] < 0 && side.kind().path != OH_PATH_SOCKET;
        const size_t count = host ? 100'000 : 1'000;
        std::vector<uint64_t> from(count), to(count), lengths(count);
        for (size_t i = 0; i < count; ++i) {
          from[i] = i * 7919 % (kSpace / 2);
          to[i] = 100 + i * 104729 % (kSpace / 2);
          lengths[i] = 1 + i % 500;
        }
        oh_batch batch = batch_of(buffer);
        batch.count = count;
        batch.local_offsets = from.data();
        batch.remote_offsets = to.data();
        batch.lengths = lengths.data();
        side.peer().put_batch(remote, batch).wait(20s);
        side.peer().prepare_put(remote, batch).post().wait(20s);
        show(side);
        // All blocks at the same place.
        oh_batch pile = batch_of(buffer);
        pile.count = 1'000;
        pile.local_stride = 13;
        pile.remote_base = 500;
        pile.length = 100;
        side.peer().put_batch(remote, pile).wait(20s);
        show(side);
      },
      owner(kSpace, 2, [](size_t round, const onehop::Bytes& there) {
        const size_t begin = round == 0 ? 100 : 500;
        const size_t end = round == 0 ? 100 + kSpace / 2 + 500 : 600;
        onehop::Bytes poison(kSpace, 0xee);
        EXPECT_EQ(std::memcmp(there.data(), poison.data(), begin), 0);
        EXPECT_EQ(std::memcmp(there.data() + end, poison.data(), kSpace - end), 0);
        EXPECT_NE(std::memcmp(there.data() + begin, poison.data(), 100), 0);
      }));
}

}  // namespace
}  // namespace conformance::bad_batches
