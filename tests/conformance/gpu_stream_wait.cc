// SPDX-License-Identifier: Apache-2.0
//
// Streams that wait for requests: oh_request_stream_wait. They continue once the request has ended,
// successfully or not, and not before; the host never waits.
#include <optional>

#include "conformance/fake_driver.h"

namespace conformance::gpu_stream_wait {
namespace {

using namespace std::chrono_literals;

constexpr size_t kSize = 1'000'000;

class GpuStreamWait : public ::testing::TestWithParam<LinkKind> {};

// The stream copies the message after its wait; several streams may wait for one request.
TEST_P(GpuStreamWait, TheStreamSeesTheBytes) {
  run_pair(
      GetParam(),
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        side.sync();
        for (size_t size : {size_t{1}, size_t{5000}, kSize}) {
          mine.fill(size);
          side.sync();
          side.peer().send(mine.data(), size, 1, 20s);
          side.sync();
        }
      },
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        Buffer copies[2] = {side.buffer(kSize), side.buffer(kSize)};
        void* streams[2] = {make_stream(), make_stream()};
        side.sync();
        for (size_t size : {size_t{1}, size_t{5000}, kSize}) {
          mine.poison();
          for (Buffer& copy : copies) copy.poison();
          {
            onehop::Request receive = side.peer().irecv(mine.data(), kSize, 1);
            for (int i = 0; i < 2; ++i) {
              receive.stream_wait(streams[i]);
              copy_on(streams[i], copies[i].data(), mine.data(), kSize);
            }
            // Nothing was sent yet: the streams have not begun to copy.
            EXPECT_FALSE(receive.test());
            EXPECT_FALSE(copies[0].holds(size, size));
            side.sync();
            // The handle is released; the streams still see the end.
          }
          for (int i = 0; i < 2; ++i) {
            synchronize_stream(streams[i]);
            EXPECT_TRUE(copies[i].holds(size, size));
          }
          side.sync();
        }
        for (void* stream : streams) destroy_stream(stream);
      });
}

// The stream continues, and the request reports the error.
TEST_P(GpuStreamWait, AFailureLetsTheStreamGo) {
  run_pair(
      GetParam(),
      [](Side& side) {
        side.sync();
        oh_endpoint_close(side.endpoint().get());
      },
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        void* stream = make_stream();
        onehop::Request cancelled = side.peer().irecv(mine.data(), kSize, 1);
        cancelled.stream_wait(stream);
        EXPECT_TRUE(cancelled.cancel());
        synchronize_stream(stream);
        EXPECT_EQ(oh_request_test(cancelled.get()), OH_ERR_CANCELLED);

        onehop::Request late = side.peer().irecv(mine.data(), kSize, 1);
        late.stream_wait(stream);
        EXPECT_THROW(late.wait(10ms), onehop::TimeoutError);
        synchronize_stream(stream);

        onehop::Request any = side.endpoint().irecv(mine.data(), kSize, 9);
        any.stream_wait(stream);
        EXPECT_TRUE(any.cancel());
        synchronize_stream(stream);
        {
          onehop::Request dropped = side.endpoint().irecv(mine.data(), kSize, 9);
          dropped.stream_wait(stream);
        }
        synchronize_stream(stream);

        onehop::Request lost = side.peer().irecv(mine.data(), kSize, 1);
        lost.stream_wait(stream);
        side.sync();  // the other side closes
        synchronize_stream(stream);
        EXPECT_EQ(oh_request_test(lost.get()), OH_ERR_PEER_LOST);
        // The request has ended: nothing is enqueued.
        lost.stream_wait(stream);
        destroy_stream(stream);
      });
}

TEST_P(GpuStreamWait, ClosingLetsTheStreamGo) {
  run_pair(
      GetParam(), [](Side& side) { side.sync(); },
      [](Side& side) {
        Buffer mine = side.buffer(kSize);
        void* stream = make_stream();
        onehop::Request receive = side.peer().irecv(mine.data(), kSize, 1);
        receive.stream_wait(stream);
        oh_endpoint_close(side.endpoint().get());
        synchronize_stream(stream);
        EXPECT_EQ(oh_request_test(receive.get()), OH_ERR_CANCELLED);
        destroy_stream(stream);
        side.sync();
      });
}

// Words of streams that have passed are reused.
TEST_P(GpuStreamWait, ManyWaitsTakeNoMoreMemory) {
  run_pair(
      GetParam(),
      [](Side& side) {
        Buffer mine = side.buffer(64);
        for (uint64_t i = 0; i < 200; ++i) side.peer().send(mine.data(), 64, i, 20s);
        side.sync();
      },
      [](Side& side) {
        Buffer mine = side.buffer(64);
        void* stream = make_stream();
        std::optional<size_t> pinned;
        for (uint64_t i = 0; i < 200; ++i) {
          onehop::Request receive = side.peer().irecv(mine.data(), 64, i);
          receive.stream_wait(stream);
          synchronize_stream(stream);
          EXPECT_EQ(oh_request_test(receive.get()), OH_OK);
          FakeCudaCounts counts{};
          fake_driver().counts(&counts);
          if (i == 50) pinned = counts.host_registrations;
          if (pinned) {
            EXPECT_EQ(counts.host_registrations, *pinned);
          }
        }
        destroy_stream(stream);
        side.sync();
      });
}

TEST_P(GpuStreamWait, ACapturedStreamIsRefused) {
  run_pair(
      GetParam(), [](Side& side) { side.sync(); },
      [](Side& side) {
        Buffer mine = side.buffer(64);
        void* stream = make_stream();
        onehop::Request receive = side.peer().irecv(mine.data(), 64, 1);
        void* graph = capture_graph(
            stream, [&] { EXPECT_THROW(receive.stream_wait(stream), onehop::OperationError); });
        destroy_graph(graph);
        EXPECT_TRUE(receive.cancel());
        destroy_stream(stream);
        side.sync();
      });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuStreamWait, ::testing::ValuesIn(device_message_kinds()),
                         [](const auto& test) { return test.param.name; });

TEST(GpuStreamWaits, AnEndpointOfTheHostIsRefused) {
  onehop::Endpoint endpoint;
  uint8_t byte = 0;
  onehop::Request receive = endpoint.irecv(&byte, 1, 0);
  EXPECT_EQ(oh_request_stream_wait(receive.get(), nullptr), OH_ERR_INVALID);
  EXPECT_NE(std::string(oh_error_text()).find("no device"), std::string::npos);
}

}  // namespace
}  // namespace conformance::gpu_stream_wait
