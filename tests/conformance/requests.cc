// SPDX-License-Identifier: Apache-2.0
//
// Requests: deadlines, limits, failures, and the state after them.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <fstream>
#include <thread>
#include <utility>

#include "conformance/sides.h"

namespace conformance::requests {
namespace {

using namespace std::chrono_literals;

TEST_P(Messages, AReceiveWithoutMessageEndsAtItsDeadline) {
  run(
      [](Side& side) {
        side.sync();
        Buffer buffer = side.buffer(100000);
        for (uint64_t i = 0; i < 3; ++i) {
          buffer.fill(i);
          side.peer().send(buffer.data(), buffer.size(), 1);
        }
      },
      [](Side& side) {
        Buffer late = side.buffer(100000);
        late.poison();
        try {
          side.peer().recv(late.data(), late.size(), 1, 30ms);
          ADD_FAILURE() << "a message came from nowhere";
        } catch (const onehop::TimeoutError& failure) {
          // The text has the state of both sides, and names the peer.
          EXPECT_NE(std::string(failure.what()).find("here:"), std::string::npos);
          EXPECT_NE(std::string(failure.what()).find("there:"), std::string::npos);
        }
        onehop::Request request = side.peer().irecv(late.data(), late.size(), 1);
        EXPECT_EQ(status_of([&] { request.wait(20ms); }), OH_ERR_TIMEOUT);
        EXPECT_TRUE(request.buffer_released());
        side.sync();
        for (uint64_t i = 0; i < 3; ++i) {
          Buffer buffer = side.buffer(100000);
          side.peer().recv(buffer.data(), buffer.size(), 1);
          EXPECT_TRUE(buffer.holds(i, buffer.size())) << "message " << i;
        }
        // Released buffers were not written.
        EXPECT_EQ(late.at(0), 0xee);
        EXPECT_EQ(late.at(99999), 0xee);
      });
}

TEST_P(Messages, ASendWithoutReceiveEndsAtItsDeadline) {
  constexpr size_t kSize = 1000000;
  run(
      [](Side& side) {
        Buffer buffer = side.buffer(kSize);
        buffer.fill(1);
        EXPECT_EQ(status_of([&] { side.peer().send(buffer.data(), kSize, 1, 30ms); }),
                  OH_ERR_TIMEOUT);
        buffer.poison();
        side.sync();
        // The abandoned message is not delivered; later ones are.
        buffer.fill(2);
        side.peer().send(buffer.data(), kSize, 1);
        buffer.fill(3);
        side.peer().send(buffer.data(), kSize, 1);
      },
      [](Side& side) {
        side.sync();
        for (uint64_t i = 2; i < 4; ++i) {
          Buffer buffer = side.buffer(kSize);
          side.peer().recv(buffer.data(), kSize, 1);
          EXPECT_TRUE(buffer.holds(i, kSize)) << "message " << i;
        }
      });
}

TEST_P(Messages, DroppedRequestsGoOn) {
  constexpr size_t kSize = 200000;
  run(
      [](Side& side) {
        Buffer buffer = side.buffer(kSize);
        buffer.fill(5);
        {
          onehop::Request dropped = side.peer().isend(buffer.data(), kSize, 1);
        }
        side.peer().send("end", 3, 2);
        // A caller that releases a request still makes progress for it.
        char ack = 0;
        side.peer().recv(&ack, 1, 3);
      },
      [](Side& side) {
        char end[3];
        side.peer().recv(end, 3, 2);
        Buffer buffer = side.buffer(kSize);
        side.peer().recv(buffer.data(), kSize, 1);
        EXPECT_TRUE(buffer.holds(5, kSize));
        side.peer().send("!", 1, 3);
      });
}

TEST_P(Messages, TooManyPendingSendsMeetBackPressure) {
  LinkKind kind = GetParam();
  kind.env["ONEHOP_MAX_PENDING"] = "100";
  kind.env["ONEHOP_EAGER_CREDIT"] = "0";
  run_pair(
      kind,
      [](Side& side) {
        std::deque<onehop::Request> requests;
        uint64_t value = 7;
        while (true) {
          std::optional<onehop::Request> request = side.peer().try_isend(&value, sizeof(value));
          if (!request) break;
          requests.push_back(std::move(*request));
          ASSERT_LE(requests.size(), 100u);
        }
        EXPECT_EQ(requests.size(), 100u);
        EXPECT_GE(side.peer().stats().back_pressure, 1u);
        EXPECT_EQ(status_of([&] { side.peer().send(&value, sizeof(value), 0, 20ms); }),
                  OH_ERR_TIMEOUT);
        side.sync();
        side.peer().send(&value, sizeof(value));  // waits for room
        for (onehop::Request& request : requests) request.wait();
      },
      [](Side& side) {
        side.sync();
        for (int i = 0; i < 101; ++i) {
          uint64_t value = 0;
          side.peer().recv(&value, sizeof(value));
          EXPECT_EQ(value, 7u);
        }
      });
}

// The link's last operations can be read, and a timeout writes them to a file if configured.
TEST_P(Messages, TheLastOperationsAreRemembered) {
  std::string folder = ::testing::TempDir();
  setenv("ONEHOP_FLIGHT_DIR", folder.c_str(), 1);
  run(
      [](Side& side) {
        Buffer buffer = side.buffer(200000);
        for (int i = 0; i < 1200; ++i) side.peer().send(buffer.data(), 8, 5);
        side.peer().send(buffer.data(), buffer.size(), 6);
        side.sync();
      },
      [&](Side& side) {
        Buffer buffer = side.buffer(200000);
        for (int i = 0; i < 1200; ++i) side.peer().recv(buffer.data(), 8, 5);
        side.peer().recv(buffer.data(), buffer.size(), 6);
        EXPECT_EQ(status_of([&] { side.peer().recv(buffer.data(), 8, 77, 5ms); }), OH_ERR_TIMEOUT);
        side.sync();
        std::string record = side.peer().flight_record();
        EXPECT_EQ(std::count(record.begin(), record.end(), '\n'), 1024);
        EXPECT_NE(record.find("receive of 200000 bytes, tag 6"), std::string::npos);
        EXPECT_NE(record.find("receive of 8 bytes, tag 77, by none: OH_ERR_TIMEOUT"),
                  std::string::npos);
        std::string path = folder + "/onehop-" + std::to_string(getpid()) + "-peer-" +
                           std::to_string(side.peer().info().id) + ".flight";
        std::ifstream file(path);
        std::string text((std::istreambuf_iterator<char>(file)), {});
        EXPECT_NE(text.find("receive of 200000 bytes, tag 6"), std::string::npos) << path;
        std::remove(path.c_str());
      });
  unsetenv("ONEHOP_FLIGHT_DIR");
}

// Other operations may end between the query of a text's length and its retrieval.
TEST(Fill, GrowsUntilTheBytesFit) {
  size_t calls = 0;
  onehop::Bytes bytes = onehop::detail::fill(10, [&](void* out, size_t* size) {
    const size_t needed = 100 + 50 * std::min<size_t>(++calls, 5);
    const size_t room = std::exchange(*size, needed);
    if (needed > room) return OH_ERR_RANGE;
    std::memset(out, 7, needed);
    return OH_OK;
  });
  EXPECT_EQ(bytes, onehop::Bytes(350, 7));
}

TEST_P(Messages, WrongArgumentsAreRefusedAtOnce) {
  run_both([](Side& side) {
    char byte = 0;
    onehop::Peer& peer = side.peer();
    EXPECT_EQ(status_of([&] { peer.send(nullptr, 4); }), OH_ERR_INVALID);
    EXPECT_EQ(status_of([&] { peer.recv(nullptr, 4); }), OH_ERR_INVALID);
    EXPECT_EQ(status_of([&] { peer.send(&byte, 1, OH_ANY_TAG); }), OH_ERR_INVALID);
    EXPECT_EQ(status_of([&] { peer.recv(&byte, 1, OH_TAG_MAX + 1); }), OH_ERR_INVALID);
    EXPECT_EQ(status_of([&] { peer.recv(&byte, 1, 0, onehop::Timeout(-1)); }), OH_ERR_INVALID);
    EXPECT_EQ(status_of([&] { peer.signal(OH_SIGNAL_SLOTS); }), OH_ERR_INVALID);
    EXPECT_EQ(status_of([&] { peer.wait_signal(OH_SIGNAL_SLOTS); }), OH_ERR_INVALID);
    EXPECT_EQ(oh_peer_send(nullptr, &byte, 1, 0, nullptr), OH_ERR_INVALID);
    EXPECT_NE(std::string(oh_error_text()).find("peer"), std::string::npos);
    oh_transfer_options wrong{};
    EXPECT_EQ(oh_peer_recv(peer.get(), &byte, 1, 0, &wrong, nullptr), OH_ERR_INVALID);
    // The link works as before.
    uint64_t out = 5;
    uint64_t in = 0;
    onehop::Request send = peer.isend(&out, sizeof(out));
    peer.recv(&in, sizeof(in));
    send.wait();
    EXPECT_EQ(in, 5u);
  });
}

TEST_P(Messages, AClosedLinkEndsWhatWaitsOnIt) {
  run(
      [](Side& side) {
        side.sync();
        side.peer().close();
        char byte = 0;
        EXPECT_EQ(status_of([&] { side.peer().send(&byte, 1); }), OH_ERR_LINK);
      },
      [](Side& side) {
        Buffer buffer = side.buffer(100000);
        onehop::Request posted = side.peer().irecv(buffer.data(), buffer.size());
        onehop::Request offered = side.peer().isend(buffer.data(), buffer.size());
        side.sync();
        EXPECT_EQ(status_of([&] { posted.wait(10s); }), OH_ERR_PEER_LOST);
        EXPECT_EQ(status_of([&] { offered.wait(10s); }), OH_ERR_PEER_LOST);
        EXPECT_TRUE(posted.buffer_released());
        EXPECT_EQ(status_of([&] { side.peer().send("x", 1); }), OH_ERR_PEER_LOST);
        EXPECT_EQ(status_of([&] { side.peer().wait_signal(0); }), OH_ERR_PEER_LOST);
      });
}

// Messages sent before the link was closed still arrive.
TEST_P(Messages, MessagesOutliveTheirSender) {
  if (on_device(GetParam().memory[0])) {
    GTEST_SKIP() << "a send from device memory ends when its receive has taken it";
  }
  run(
      [](Side& side) {
        for (uint64_t i = 0; i < 7; ++i) {
          Buffer buffer = side.buffer(100);
          buffer.fill(i);
          side.peer().send(buffer.data(), buffer.size());
        }
        side.peer().close();
        side.sync();
      },
      [](Side& side) {
        side.sync();
        for (uint64_t i = 0; i < 7; ++i) {
          Buffer buffer = side.buffer(100);
          side.peer().recv(buffer.data(), buffer.size());
          EXPECT_TRUE(buffer.holds(i, buffer.size()));
        }
        char byte;
        EXPECT_EQ(status_of([&] { side.peer().recv(&byte, 1, 0, 10s); }), OH_ERR_PEER_LOST);
      });
}

TEST_P(Messages, WaitsWakeSleepers) {
  run(
      [](Side& side) {
        for (int i = 0; i < 5; ++i) {
          std::this_thread::sleep_for(20ms);  // longer than any spinning
          Buffer buffer = side.buffer(i % 2 ? 100000 : 8);
          buffer.fill(static_cast<uint64_t>(i));
          side.peer().send(buffer.data(), buffer.size());
        }
      },
      [](Side& side) {
        for (int i = 0; i < 5; ++i) {
          Buffer buffer = side.buffer(100000);
          onehop::Message message = side.peer().recv(buffer.data(), buffer.size());
          EXPECT_TRUE(buffer.holds(static_cast<uint64_t>(i), message.size));
        }
      });
}

TEST_P(Messages, InfoSaysWhatTheLinkIs) {
  run_both([](Side& side) {
    oh_peer_info info = side.peer().info();
    EXPECT_EQ(info.path, side.kind().host_path());
    EXPECT_EQ(info.rank, -1);
    EXPECT_NE(std::string(info.label), "");
    bool single = side.kind().shares_memory() && !side.kind().env.count("ONEHOP_CMA");
    EXPECT_EQ(info.single_copy != 0, single);
    EXPECT_EQ(info.target_progress != 0, !single);
    auto row = onehop::detail::sized<oh_path_row>();
    size_t rows = 0;
    while (oh_peer_get_path(side.peer().get(), rows, &row) == OH_OK) {
      EXPECT_LE(row.first, row.last);
      EXPECT_NE(std::string(row.why), "");
      ++rows;
    }
    EXPECT_GE(rows, 6u);
  });
}

}  // namespace
}  // namespace conformance::requests
