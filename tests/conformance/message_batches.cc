// SPDX-License-Identifier: Apache-2.0
//
// Batches as messages: many blocks on one side, many different ones on the other.
#include "conformance/message_batches.h"

#include <deque>

namespace conformance::message_batches {
namespace {

TEST_P(Conformance, BatchMessagesMoveBlocksThatAreCutDifferently) {
  constexpr size_t kSpace = 1'000'000;
  Cut fine = cut_up(1000, 600, kSpace);
  Cut coarse = whole(fine.total());
  Cut other;
  for (uint64_t left = fine.total(), at = 7; left > 0; at += 3000) {
    uint64_t size = std::min<uint64_t>(left, 1999);
    other.add(at, size);
    left -= size;
  }
  const std::pair<Cut, Cut> pairs[] = {
      {fine, fine}, {fine, coarse}, {coarse, fine}, {fine, other}, {other, fine}};
  run(
      [&](Side& side) {
        for (const auto& [from, to] : pairs) send_filled(side, from, kSpace, from.offsets.size());
      },
      [&](Side& side) {
        for (const auto& [from, to] : pairs) {
          Buffer in = side.buffer(kSpace);
          in.poison();
          onehop::Message message = side.peer().recv_batch(to.of(in), 0, 20s);
          EXPECT_EQ(message.size, from.total());
          EXPECT_EQ(message.tag, 0u);
          EXPECT_EQ(message.peer_id, side.peer().info().id);
          EXPECT_EQ(message.path, side.kind().one_sided_path());
          EXPECT_TRUE(to.holds(in, sent(from, kSpace, from.offsets.size())));
        }
      });
}

TEST_P(Conformance, BatchMessagesOfManyBlocks) {
  // Fewer if every block needs its own slot or engine copy.
  const size_t count = GetParam().device[0] < 0 ? 100'000 : 3'000;
  const size_t space = count * 33;
  Cut from = cut_up(count, 32, space);
  Cut to = cut_up(count, 32, space);
  std::reverse(to.lengths.begin(), to.lengths.end());
  run([&](Side& side) { send_filled(side, from, space, 5); },
      [&](Side& side) {
        Buffer in = side.buffer(space);
        in.poison();
        EXPECT_EQ(side.peer().recv_batch(to.of(in), 0, 20s).size, from.total());
        EXPECT_TRUE(to.holds(in, sent(from, space, 5)));
      });
}

TEST_P(Conformance, StridedBatchMessages) {
  constexpr size_t kRows = 500;
  run(
      [&](Side& side) {
        Buffer out = side.buffer(kRows * 128);
        out.fill(4);
        oh_blocks blocks{};
        blocks.memory = out.data();
        blocks.memory_size = out.size();
        blocks.count = kRows;
        blocks.base = 28;
        blocks.stride = 128;
        blocks.length = 100;
        side.peer().send_batch(blocks, 3, 20s);
      },
      [&](Side& side) {
        Buffer in = side.buffer(kRows * 200);
        in.poison();
        oh_blocks blocks{};
        blocks.memory = in.data();
        blocks.memory_size = in.size();
        blocks.count = 2 * kRows;
        blocks.stride = 100;
        blocks.length = 50;
        EXPECT_EQ(side.peer().recv_batch(blocks, 3, 20s).size, kRows * 100);
        onehop::Bytes came = in.bytes();
        onehop::Bytes out = pattern(4, kRows * 128);
        for (size_t row = 0; row < kRows; ++row) {
          ASSERT_EQ(std::memcmp(&came[row * 200], &out[28 + row * 128], 50), 0) << row;
          ASSERT_EQ(std::memcmp(&came[row * 200 + 100], &out[78 + row * 128], 50), 0) << row;
          ASSERT_EQ(came[row * 200 + 50], 0xee) << row;
        }
      });
}

TEST_P(Conformance, ShortBatchMessagesFillTheFirstBytes) {
  constexpr size_t kSpace = 10'000;
  Cut to = cut_up(20, 400, kSpace);
  run(
      [&](Side& side) {
        for (uint64_t length : {0, 1, 1001}) send_filled(side, whole(length), kSpace, length);
        side.peer().send_batch({}, 0, 20s);
      },
      [&](Side& side) {
        for (uint64_t length : {0, 1, 1001}) {
          Buffer in = side.buffer(kSpace);
          in.poison();
          EXPECT_EQ(side.peer().recv_batch(to.of(in), 0, 20s).size, length);
          EXPECT_TRUE(to.holds(in, sent(whole(length), kSpace, length)));
        }
        EXPECT_EQ(side.peer().recv_batch({}, 0, 20s).size, 0u);
      });
}

TEST_P(Conformance, BatchMessagesThatDoNotFitFailOnBothSides) {
  constexpr size_t kSpace = 5000;
  run(
      [&](Side& side) {
        Buffer out = side.buffer(kSpace);
        EXPECT_EQ(status_of([&] { side.peer().send_batch(whole(101).of(out), 0, 20s); }),
                  OH_ERR_TRUNCATED);
        EXPECT_EQ(status_of([&] { side.peer().send_batch(whole(1).of(out), 0, 20s); }),
                  OH_ERR_TRUNCATED);
        send_filled(side, whole(100), kSpace, 1);  // still in step
      },
      [&](Side& side) {
        Buffer in = side.buffer(kSpace);
        in.poison();
        EXPECT_EQ(status_of([&] { side.peer().recv_batch(whole(100).of(in), 0, 20s); }),
                  OH_ERR_TRUNCATED);
        EXPECT_NE(std::string(oh_error_text()).find("101 bytes"), std::string::npos);
        EXPECT_EQ(status_of([&] { side.peer().recv_batch({}, 0, 20s); }), OH_ERR_TRUNCATED);
        EXPECT_TRUE(Cut{}.holds(in, {}));
        EXPECT_EQ(side.peer().recv_batch(whole(100).of(in), 0, 20s).size, 100u);
        EXPECT_TRUE(whole(100).holds(in, sent(whole(100), kSpace, 1)));
      });
}

// Batches and messages of one tag, and batches of other tags, do not match each other.
TEST_P(Conformance, BatchMessagesMatchByTagAmongThemselves) {
  constexpr size_t kSize = 3000;
  const uint64_t last = OH_BATCH_TAG_MAX;
  run(
      [&](Side& side) {
        Buffer out = side.buffer(kSize);
        out.fill(100);
        onehop::Request message = side.peer().isend(out.data(), kSize, 5);
        for (uint64_t i = 0; i < 4; ++i) {
          send_filled(side, whole(kSize), kSize, i, 5);
          send_filled(side, whole(kSize), kSize, 10 + i, last);
        }
        message.wait(20s);
      },
      [&](Side& side) {
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        auto post = [&](uint64_t tag) {
          buffers.push_back(side.buffer(kSize));
          buffers.back().poison();
          requests.push_back(side.peer().irecv_batch(whole(kSize).of(buffers.back()), tag));
        };
        for (int i = 0; i < 4; ++i) post(last);
        for (int i = 0; i < 4; ++i) post(5);
        Buffer in = side.buffer(kSize);
        onehop::Message message = side.peer().recv(in.data(), kSize, onehop::kAnyTag, 20s);
        EXPECT_EQ(message.tag, 5u);
        EXPECT_TRUE(in.holds(100, kSize));
        for (size_t i = 0; i < 8; ++i) {
          EXPECT_EQ(requests[i].wait(20s).tag, i < 4 ? last : 5u);
          EXPECT_TRUE(buffers[i].holds(i < 4 ? 10 + i : i - 4, kSize)) << i;
        }
      });
}

TEST_P(Conformance, BatchMessagesAreExchanged) {
  constexpr size_t kSpace = 500'000;
  Cut cut = cut_up(500, 800, kSpace);
  run_both([&](Side& side) {
    auto mine = static_cast<uint64_t>(side.number());
    for (uint64_t round = 0; round < 5; ++round) {
      Buffer in = side.buffer(kSpace);
      in.poison();
      onehop::Request request = side.peer().irecv_batch(cut.of(in));
      send_filled(side, cut, kSpace, 2 * round + mine);
      EXPECT_EQ(request.wait(20s).size, cut.total());
      EXPECT_TRUE(cut.holds(in, sent(cut, kSpace, 2 * round + 1 - mine)));
    }
  });
}

TEST_P(Conformance, BatchMessagesWaitForTheirReceives) {
  run(
      [&](Side& side) {
        Buffer out = side.buffer(1000);
        out.fill(1);
        EXPECT_EQ(status_of([&] { side.peer().send_batch(whole(1000).of(out), 1, 30ms); }),
                  OH_ERR_TIMEOUT);
        side.sync();
        // That one was not sent.
        send_filled(side, whole(1000), 1000, 2, 1);
      },
      [&](Side& side) {
        side.sync();
        Buffer in = side.buffer(1000);
        side.peer().recv_batch(whole(1000).of(in), 1, 20s);
        EXPECT_TRUE(in.holds(2, 1000));
      });
}

// Abandoned receives, before or after the peer knows of them, match nothing.
TEST_P(Conformance, BatchReceivesThatWereGivenUpLeaveTheOrder) {
  constexpr size_t kSpace = 200'000;
  Cut fine = cut_up(2000, 90, kSpace);  // its offer is large
  Cut coarse = whole(fine.total());
  run(
      [&](Side& side) {
        side.sync();
        for (uint64_t i = 0; i < 4; ++i) send_filled(side, fine, kSpace, i);
      },
      [&](Side& side) {
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        auto post = [&](const Cut& cut) {
          buffers.push_back(side.buffer(kSpace));
          buffers.back().poison();
          requests.push_back(side.peer().irecv_batch(cut.of(buffers.back())));
        };
        for (int i = 0; i < 8; ++i) post(i % 2 ? fine : coarse);
        for (size_t i : {0, 3, 4}) EXPECT_TRUE(requests[i].cancel());
        EXPECT_EQ(status_of([&] { requests[5].wait(30ms); }), OH_ERR_TIMEOUT);
        for (size_t i : {0, 3, 4, 5}) EXPECT_TRUE(requests[i].buffer_released());
        EXPECT_EQ(status_of([&] { requests[0].wait(); }), OH_ERR_CANCELLED);
        side.sync();
        uint64_t expected = 0;
        for (size_t i : {1, 2, 6, 7}) {
          EXPECT_EQ(requests[i].wait(20s).size, fine.total());
          const Cut& cut = i % 2 ? fine : coarse;
          EXPECT_TRUE(cut.holds(buffers[i], sent(fine, kSpace, expected++))) << i;
        }
        for (size_t i : {0, 3, 4, 5}) EXPECT_TRUE(Cut{}.holds(buffers[i], {})) << i;
      });
}

// A program may poll repeatedly for an arrived batch.
TEST_P(Conformance, BatchReceivesThatWereGivenUpCostNoCredit) {
  run(
      [&](Side& side) {
        while (!side.was_told()) side.endpoint().progress();
        side.sync();
        send_filled(side, whole(100), 100, 1, 1);
      },
      [&](Side& side) {
        Buffer in = side.buffer(100);
        auto look = [&](int i) {
          uint64_t before = side.peer().stats().out_of_credit;
          onehop::Request request = side.peer().irecv_batch(whole(100).of(in), 1);
          EXPECT_TRUE(request.cancel()) << i;
          return side.peer().stats().out_of_credit == before;
        };
        for (int i = 0; i < 3000; ++i) look(i);
        // The credit is being returned.
        auto end = std::chrono::steady_clock::now() + 20s;
        bool has_credit = false;
        while (!has_credit && std::chrono::steady_clock::now() < end) {
          side.endpoint().progress();
          has_credit = look(-1);
        }
        EXPECT_TRUE(has_credit);
        side.sync();
        EXPECT_EQ(side.peer().recv_batch(whole(100).of(in), 1, 20s).size, 100u);
        EXPECT_TRUE(in.holds(1, 100));
      });
}

TEST_P(Conformance, BadBatchMessagesAreRefused) {
  run_both([&](Side& side) {
    onehop::Peer& peer = side.peer();
    Buffer buffer = side.buffer(2000);
    auto refused = [&](const oh_blocks& blocks, uint64_t tag, oh_status status, const char* text) {
      for (int verb = 0; verb < 3; ++verb) {
        EXPECT_EQ(status_of([&] {
                    if (verb == 0) peer.send_batch(blocks, tag, 10ms);
                    if (verb == 1) peer.recv_batch(blocks, tag, 10ms);
                    if (verb == 2) peer.irecv_batch(blocks, tag);
                  }),
                  status)
            << text << ", verb " << verb;
        EXPECT_NE(std::string(oh_error_text()).find(text), std::string::npos) << oh_error_text();
      }
    };
    Cut cut;
    cut.add(0, 8);
    cut.add(1995, 8);
    refused(cut.of(buffer), 0, OH_ERR_RANGE, "block 1");
    cut.offsets[1] = UINT64_MAX;
    refused(cut.of(buffer), 0, OH_ERR_RANGE, "block 1");
    cut = whole(8);
    oh_blocks blocks = cut.of(buffer);
    refused(blocks, OH_BATCH_TAG_MAX + 1, OH_ERR_INVALID, "tags of batches");
    refused(blocks, OH_ANY_TAG, OH_ERR_INVALID, "tags of batches");
    blocks.lengths = nullptr;
    refused(blocks, 0, OH_ERR_INVALID, "both arrays");
    blocks.offsets = nullptr;
    blocks.count = 3;
    blocks.length = 1;
    blocks.stride = UINT64_MAX;
    refused(blocks, 0, OH_ERR_RANGE, "block 1: 1 bytes at");
    blocks.base = 1;
    refused(blocks, 0, OH_ERR_RANGE, "block 1: its offset");
    blocks.memory = nullptr;
    refused(blocks, 0, OH_ERR_INVALID, "NULL");
    oh_message message{};
    message.struct_size = sizeof(message);
    oh_request* request = nullptr;
    EXPECT_EQ(oh_peer_send_batch(peer.get(), nullptr, 0, nullptr), OH_ERR_INVALID);
    EXPECT_EQ(oh_peer_send_batch(nullptr, &blocks, 0, nullptr), OH_ERR_INVALID);
    EXPECT_EQ(oh_peer_recv_batch(peer.get(), nullptr, 0, nullptr, &message), OH_ERR_INVALID);
    EXPECT_EQ(oh_peer_irecv_batch(peer.get(), nullptr, 0, nullptr, &request), OH_ERR_INVALID);
    EXPECT_EQ(oh_peer_irecv_batch(peer.get(), &blocks, 0, nullptr, nullptr), OH_ERR_INVALID);
    oh_transfer_options options{};
    options.struct_size = sizeof(options);
    options.timeout_ns = -1;
    cut = whole(8);
    blocks = cut.of(buffer);
    EXPECT_EQ(oh_peer_send_batch(peer.get(), &blocks, 0, &options), OH_ERR_INVALID);
    side.sync();
  });
}

TEST_P(Conformance, BatchMessagesAreBounded) {
  run_both([&](Side& side) {
    Buffer buffer = side.buffer(8);
    oh_blocks blocks{};
    blocks.memory = buffer.data();
    blocks.memory_size = 8;
    blocks.count = (size_t{1} << 20) + 1;
    EXPECT_EQ(status_of([&] { side.peer().send_batch(blocks); }), OH_ERR_INVALID);
    EXPECT_EQ(status_of([&] { side.peer().irecv_batch(blocks); }), OH_ERR_INVALID);
    EXPECT_NE(std::string(oh_error_text()).find("1048576"), std::string::npos);
  });
}

// Closing a link ends the receives of batches on it.
TEST_P(Conformance, BatchReceivesEndWithTheirLink) {
  run(
      [&](Side& side) {
        Buffer in = side.buffer(1000);
        onehop::Request request = side.peer().irecv_batch(whole(1000).of(in));
        side.sync();
        EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_PEER_LOST);
        EXPECT_TRUE(request.buffer_released());
        EXPECT_EQ(status_of([&] { side.peer().send_batch(whole(1000).of(in), 0, 20s); }),
                  OH_ERR_PEER_LOST);
      },
      [&](Side& side) {
        side.sync();
        Buffer in = side.buffer(1000);
        onehop::Request request = side.peer().irecv_batch(whole(1000).of(in));
        side.drop_peer();
        EXPECT_EQ(status_of([&] { request.wait(20s); }), OH_ERR_CANCELLED);
        EXPECT_TRUE(request.buffer_released());
      });
}

}  // namespace
}  // namespace conformance::message_batches
