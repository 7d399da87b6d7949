// SPDX-License-Identifier: Apache-2.0
//
// Messages: bytes, order, matching.
#include <algorithm>
#include <cstdlib>
#include <deque>
#include <random>
#include <thread>

#include "conformance/sides.h"

namespace conformance::messages {
namespace {

// Sizes around every boundary of a path.
const std::vector<size_t> kSizes = {
    0,     1,     7,     8,     15,    16,     47,     48,     49,     63,      64,      65,
    400,   511,   512,   513,   1024,  2032,   2047,   2048,   2049,   4096,    16383,   16384,
    16385, 32768, 65535, 65536, 65537, 131072, 262144, 300001, 524288, 1000003, 1048576, 5000011};

TEST_P(Messages, EverySizeArrivesWhole) {
  run(
      [](Side& side) {
        for (size_t i = 0; i < kSizes.size(); ++i) {
          Buffer buffer = side.buffer(kSizes[i]);
          buffer.fill(i);
          side.peer().send(buffer.data(), buffer.size(), i);
          // The buffer is released: changes to it must not reach the peer.
          buffer.poison();
        }
      },
      [](Side& side) {
        for (size_t i = 0; i < kSizes.size(); ++i) {
          Buffer buffer = side.buffer(kSizes[i] + 32);
          buffer.poison();
          onehop::Message message = side.peer().recv(buffer.data(), buffer.size(), i);
          EXPECT_EQ(message.size, kSizes[i]);
          EXPECT_EQ(message.tag, i);
          EXPECT_TRUE(buffer.holds(i, kSizes[i])) << kSizes[i] << " bytes";
          ASSERT_TRUE(buffer.is_poisoned(kSizes[i])) << "past the message of " << kSizes[i];
          bool small = kSizes[i] <= side.peer().info().max_inline;
          // Eager messages use no engine. Messages from device memory are never eager.
          bool early =
              !on_device(side.kind().memory[0]) && kSizes[i] <= side.peer().info().eager_max;
          oh_path expected = early ? side.kind().host_path() : side.kind().path;
          if (message.path != OH_PATH_INLINE) {
            EXPECT_TRUE(side.kind().takes(message.path, expected))
                << kSizes[i] << " bytes by " << oh_path_name(message.path);
          } else {
            EXPECT_TRUE(small);
          }
        }
      });
}

// Blocking and not, with receives before and after their messages.
TEST_P(Messages, EverySizeWhateverComesFirst) {
  for (bool receive_first : {true, false}) {
    run(
        [&](Side& side) {
          for (size_t i = 0; i < kSizes.size(); ++i) {
            Buffer buffer = side.buffer(kSizes[i]);
            buffer.fill(i);
            if (receive_first) side.sync();
            onehop::Request request = side.peer().isend(buffer.data(), buffer.size());
            if (!receive_first) side.sync();
            request.wait();
            EXPECT_TRUE(request.buffer_released());
          }
        },
        [&](Side& side) {
          for (size_t i = 0; i < kSizes.size(); ++i) {
            Buffer buffer = side.buffer(kSizes[i]);
            buffer.poison();
            if (!receive_first) side.sync();
            onehop::Request request = side.peer().irecv(buffer.data(), buffer.size());
            if (receive_first) side.sync();
            EXPECT_EQ(request.wait().size, kSizes[i]);
            EXPECT_TRUE(buffer.holds(i, kSizes[i])) << kSizes[i];
          }
        });
  }
}

// Send k matches receive k of the same tag, whatever path each takes and whichever is first.
TEST_P(Messages, MessagesOfOneTagKeepTheirOrder) {
  const std::vector<size_t> sizes = {8, 40000, 100, 200000, 3000, 17000, 64, 1 << 20, 16384, 1};
  constexpr size_t kCount = 200;
  run(
      [&](Side& side) {
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        for (size_t i = 0; i < kCount; ++i) {
          buffers.push_back(side.buffer(sizes[(i * 7) % sizes.size()]));
          buffers.back().fill(i);
          requests.push_back(
              side.peer().isend(buffers.back().data(), buffers.back().size(), i % 3));
          if (i % 17 == 0) side.endpoint().progress();
        }
        for (onehop::Request& request : requests) request.wait();
      },
      [&](Side& side) {
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        for (size_t i = 0; i < kCount; ++i) {
          buffers.push_back(side.buffer(sizes[(i * 7) % sizes.size()]));
          buffers.back().poison();
          requests.push_back(
              side.peer().irecv(buffers.back().data(), buffers.back().size(), i % 3));
          if (i % 31 == 0) side.endpoint().progress();
        }
        for (size_t i = kCount; i-- > 0;) {
          EXPECT_EQ(requests[i].wait().size, buffers[i].size());
          EXPECT_TRUE(buffers[i].holds(i, buffers[i].size())) << "message " << i;
        }
      });
}

TEST_P(Messages, TagsDoNotMix) {
  run(
      [](Side& side) {
        for (uint64_t tag : {uint64_t{5}, uint64_t{0}, uint64_t{OH_TAG_MAX}, uint64_t{7}}) {
          side.peer().send(&tag, sizeof(tag), tag);
        }
      },
      [](Side& side) {
        for (uint64_t tag : {uint64_t{7}, uint64_t{OH_TAG_MAX}, uint64_t{5}, uint64_t{0}}) {
          uint64_t got = 1;
          EXPECT_EQ(side.peer().recv(&got, sizeof(got), tag).tag, tag);
          EXPECT_EQ(got, tag);
        }
      });
}

TEST_P(Messages, AnyTagTakesTheOldest) {
  run(
      [](Side& side) {
        Buffer large = side.buffer(100000);
        large.fill(9);
        uint64_t small = 77;
        onehop::Request first = side.peer().isend(large.data(), large.size(), 9);
        side.peer().send(&small, sizeof(small), 3);
        side.sync();
        first.wait();
      },
      [](Side& side) {
        side.sync();
        Buffer large = side.buffer(100000);
        onehop::Message message = side.peer().recv(large.data(), large.size(), onehop::kAnyTag);
        EXPECT_EQ(message.tag, 9u);
        EXPECT_TRUE(large.holds(9, 100000));
        uint64_t small = 0;
        EXPECT_EQ(side.peer().recv(&small, sizeof(small), onehop::kAnyTag).tag, 3u);
        EXPECT_EQ(small, 77u);
      });
}

// A wildcard and a tag compete for the same messages: the one posted first wins.
TEST_P(Messages, WildcardsKeepThePostingOrder) {
  constexpr size_t kSize = 50000;
  run(
      [](Side& side) {
        side.sync();
        for (uint64_t i = 0; i < 4; ++i) {
          Buffer buffer = side.buffer(kSize);
          buffer.fill(i);
          side.peer().send(buffer.data(), kSize, 1);
        }
      },
      [](Side& side) {
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        auto post = [&](uint64_t tag, bool any_source) {
          buffers.push_back(side.buffer(kSize));
          uint8_t* data = buffers.back().data();
          requests.push_back(any_source ? side.endpoint().irecv(data, kSize, tag)
                                        : side.peer().irecv(data, kSize, tag));
        };
        post(1, false);
        post(onehop::kAnyTag, false);
        post(1, true);
        post(1, false);
        side.sync();
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(requests[i].wait().tag, 1u);
          EXPECT_TRUE(buffers[i].holds(i, kSize)) << "receive " << i;
        }
      });
}

TEST_P(Messages, AnySourceNamesTheSender) {
  run([](Side& side) { side.peer().send("x", 1, 4); },
      [](Side& side) {
        char got = 0;
        onehop::Message message = side.endpoint().recv(&got, 1, 4);
        EXPECT_EQ(got, 'x');
        EXPECT_EQ(message.peer_id, side.peer().info().id);
      });
}

// A message longer than its receive is an error there, and the link stays in step.
TEST_P(Messages, LongerMessagesAreErrors) {
  const std::vector<size_t> sizes = {64, 3000, 100000, 3000000};
  run(
      [&](Side& side) {
        for (size_t size : sizes) {
          Buffer buffer = side.buffer(size);
          buffer.fill(size);
          bool told = false;
          try {
            side.peer().send(buffer.data(), size, 1);
          } catch (const onehop::OperationError& failure) {
            EXPECT_EQ(failure.status(), OH_ERR_TRUNCATED);
            told = true;
          }
          side.peer().send("next", 4, 1);
          side.sync();
          // It succeeded here, so the error arrives asynchronously; the watchdog ends a wait in
          // vain.
          while (!told) {
            try {
              side.peer().check_async_error();
              std::this_thread::yield();
            } catch (const onehop::OperationError& failure) {
              EXPECT_EQ(failure.status(), OH_ERR_TRUNCATED);
              told = true;
            }
          }
        }
      },
      [&](Side& side) {
        for (size_t size : sizes) {
          Buffer buffer = side.buffer(size);
          buffer.poison();
          try {
            side.peer().recv(buffer.data(), size - 1, 1);
            ADD_FAILURE() << "a message of " << size << " fitted into " << size - 1;
          } catch (const onehop::OperationError& failure) {
            EXPECT_EQ(failure.status(), OH_ERR_TRUNCATED);
            EXPECT_NE(std::string(failure.what()).find(std::to_string(size)), std::string::npos);
          }
          EXPECT_EQ(buffer.at(size - 1), 0xee);
          char next[5] = {};
          side.peer().recv(next, 4, 1);
          EXPECT_STREQ(next, "next");
          side.sync();
        }
      });
}

TEST_P(Messages, BothSidesSendFirst) {
  constexpr size_t kSize = 700001;
  run_both([](Side& side) {
    Buffer out = side.buffer(kSize);
    Buffer in = side.buffer(kSize);
    for (int i = 0; i < 10; ++i) {
      out.fill(static_cast<uint64_t>(side.number() * 100 + i));
      onehop::Request send = side.peer().isend(out.data(), kSize);
      side.peer().recv(in.data(), kSize);
      send.wait();
      EXPECT_TRUE(in.holds(static_cast<uint64_t>((1 - side.number()) * 100 + i), kSize));
    }
  });
}

// More than all rings, credit and slots hold. Every message waits for its turn and arrives.
TEST_P(Messages, FloodsAreBoundedAndArrive) {
  constexpr size_t kCount = 3000;
  constexpr size_t kSize = 1024;
  run(
      [](Side& side) {
        Buffer buffer = side.buffer(kCount * kSize);
        buffer.fill(1);
        std::deque<onehop::Request> requests;
        for (size_t i = 0; i < kCount; ++i) {
          requests.push_back(side.peer().isend(buffer.data() + i * kSize, kSize));
        }
        side.sync();
        for (onehop::Request& request : requests) request.wait();
      },
      [](Side& side) {
        side.sync();
        Buffer all = side.buffer(kCount * kSize);
        for (size_t i = 0; i < kCount; ++i) side.peer().recv(all.data() + i * kSize, kSize);
        EXPECT_TRUE(all.holds(1, kCount * kSize));
      });
}

TEST_P(Messages, ThreadsShareAPeer) {
  constexpr int kThreads = 4;
  constexpr int kRounds = 100;
  run_both([](Side& side) {
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&, thread] {
        size_t size = std::vector<size_t>{8, 5000, 50000, 300000}[static_cast<size_t>(thread)];
        Buffer out = side.buffer(size);
        Buffer in = side.buffer(size);
        auto tag = static_cast<uint64_t>(thread);
        for (uint64_t round = 0; round < kRounds; ++round) {
          out.fill(round * 2 + static_cast<uint64_t>(side.number()));
          onehop::Request receive = side.peer().irecv(in.data(), size, tag);
          side.peer().send(out.data(), size, tag);
          receive.wait();
          wrong += !in.holds(round * 2 + static_cast<uint64_t>(1 - side.number()), size);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(wrong.load(), 0);
  });
}

// A random mixture of sizes, tags, order and cancellations. TRAFFIC_SEED selects another one.
TEST_P(Messages, RandomTraffic) {
  const char* given = std::getenv("TRAFFIC_SEED");
  auto seed = static_cast<uint32_t>(given ? std::atoi(given) : 1);
  SCOPED_TRACE("seed " + std::to_string(seed));
  constexpr size_t kCount = 400;
  struct Item {
    size_t size;
    uint64_t tag;
  };
  std::vector<Item> items;
  std::mt19937 random(seed);
  for (size_t i = 0; i < kCount; ++i) {
    size_t size = kSizes[random() % (kSizes.size() - 1)];
    items.push_back({size, random() % 5});
  }
  run(
      [&](Side& side) {
        std::mt19937 own(seed + 1);
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        for (size_t i = 0; i < kCount; ++i) {
          buffers.push_back(side.buffer(items[i].size));
          buffers.back().fill(i);
          requests.push_back(side.peer().isend(buffers.back().data(), items[i].size, items[i].tag));
          if (own() % 8 == 0) requests[own() % requests.size()].test();
        }
        for (onehop::Request& request : requests) request.wait();
      },
      [&](Side& side) {
        std::mt19937 own(seed + 2);
        std::deque<Buffer> buffers;
        std::deque<onehop::Request> requests;
        for (size_t i = 0; i < kCount; ++i) {
          buffers.push_back(side.buffer(items[i].size));
          buffers.back().poison();
          // Sometimes a receive that is cancelled at once, before the real one.
          if (own() % 10 == 0) {
            Buffer other = side.buffer(items[i].size + 100000);
            onehop::Request taken =
                side.peer().irecv(other.data(), other.size(), items[i].tag + 10);
            EXPECT_TRUE(taken.cancel());
          }
          requests.push_back(side.peer().irecv(buffers.back().data(), items[i].size, items[i].tag));
          if (own() % 8 == 0) requests[own() % requests.size()].test();
        }
        for (size_t i = 0; i < kCount; ++i) {
          EXPECT_EQ(requests[i].wait().size, items[i].size);
          EXPECT_TRUE(buffers[i].holds(i, items[i].size)) << "message " << i;
        }
      });
}

TEST_P(Messages, ManyTagsDoNotPileUp) {
  constexpr uint64_t kTags = 40000;
  run(
      [](Side& side) {
        for (uint64_t tag = 0; tag < kTags; ++tag) side.peer().send(&tag, sizeof(tag), tag);
        Buffer last = side.buffer(100000);
        last.fill(3);
        side.peer().send(last.data(), last.size(), 1);
      },
      [](Side& side) {
        for (uint64_t tag = 0; tag < kTags; ++tag) {
          uint64_t got = 0;
          side.peer().recv(&got, sizeof(got), tag);
          ASSERT_EQ(got, tag);
        }
        Buffer last = side.buffer(100000);
        side.peer().recv(last.data(), last.size(), 1);
        EXPECT_TRUE(last.holds(3, last.size()));
      });
}

}  // namespace
}  // namespace conformance::messages
