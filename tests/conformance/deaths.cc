// SPDX-License-Identifier: Apache-2.0
//
// A peer that dies in the middle of an operation.
#include "conformance/faults.h"

#include <unistd.h>

#include <deque>

#include "conformance/batches.h"

namespace conformance::deaths {
namespace {

// Polls instead of waiting, so that the peer sees no waiter: transfers are then direct.
void look_until_ended(onehop::Request& request) {
  while (!request.test()) std::this_thread::yield();
}

TEST_P(Faults, DeathEndsWhatWaits) {
  run(
      [&](Side& side) {
        Buffer large = side.buffer(kLarge);
        Buffer inbox = side.buffer(kLarge);
        Buffer small = side.buffer(100);
        std::deque<onehop::Request> requests;
        requests.push_back(side.peer().irecv(inbox.data(), kLarge, 1));
        requests.push_back(side.peer().irecv(small.data(), 100, 2));
        requests.push_back(side.peer().irecv(small.data(), 100, onehop::kAnyTag));
        requests.push_back(side.peer().isend(large.data(), kLarge, 3));
        side.sync();
        trap().strike(side.other_process(), SIGKILL);
        for (onehop::Request& request : requests) expect_lost(request, "posted");
        EXPECT_EQ(status_of([&] { side.peer().wait_signal(1, 1, 20s); }), OH_ERR_PEER_LOST);
        EXPECT_EQ(status_of([&] { side.peer().send(small.data(), 8, 1, 20s); }), OH_ERR_PEER_LOST);
        expect_healthy(side);
      },
      [&](Side& side) {
        side.sync();
        pause();
      });
}

TEST_P(Faults, DeathOfAReceiverInTheMiddle) {
  for (bool looking : {false, true}) {
    run(
        [&](Side& side) {
          Buffer large = side.buffer(kLarge);
          large.fill(1);
          onehop::Request other = side.peer().isend(large.data(), kLarge, 2);
          onehop::Request request = side.peer().isend(large.data(), kLarge, 1);
          expect_lost(request, looking ? "receiver_looking" : "receiver_waiting", true);
          expect_lost(other, "beside_it");
          expect_healthy(side);
        },
        [&](Side& side) {
          Buffer large = side.buffer(kLarge);
          trap().set(5, SIGKILL);
          onehop::Request request = side.peer().irecv(large.data(), kLarge, 1);
          looking ? look_until_ended(request) : void(request.wait());
          // A transfer that passes only a few points: struck at its next wait.
          while (true) Trap::pass("");
        });
  }
}

TEST_P(Faults, DeathOfASenderInTheMiddle) {
  for (bool looking : {false, true}) {
    run(
        [&](Side& side) {
          Buffer large = side.buffer(kLarge);
          Buffer beside = side.buffer(kLarge);
          onehop::Request request = side.peer().irecv(large.data(), kLarge, 1);
          onehop::Request other = side.peer().irecv(beside.data(), kLarge, 2);
          side.sync();
          // The local side copies, too, and may have copied everything.
          oh_status status =
              expect_lost(request, looking ? "sender_looking" : "sender_waiting", true);
          EXPECT_TRUE(status != OH_OK || large.holds(1, kLarge));
          expect_lost(other, "beside_it");
          expect_healthy(side);
        },
        [&](Side& side) {
          Buffer large = side.buffer(kLarge);
          large.fill(1);
          side.sync();
          trap().set(2, SIGKILL);
          onehop::Request request = side.peer().isend(large.data(), kLarge, 1);
          looking ? look_until_ended(request) : void(request.wait());
          while (true) Trap::pass("");
        });
  }
}

TEST_P(Faults, DeathInsideAOneSidedCopy) {
  run(
      [&](Side& side) {
        Buffer buffer = side.buffer(1 << 20);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        await_strike();
        // Deregistering must not wait for the dead process to leave the region.
        region.deregister(20s);
        expect_healthy(side);
      },
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(1 << 20);
        trap().set(1, SIGKILL);
        while (true) {
          side.peer().put(buffer.data(), remote, 0, buffer.size()).wait();
          Trap::pass("");
        }
      });
}

// The owner of a region dies during batches into and out of it.
TEST_P(Faults, DeathOfTheOwnerUnderBatches) {
  run(
      [&](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(1 << 20);
        oh_batch batch = batch_of(buffer);
        batch.count = 1000;
        batch.local_stride = batch.remote_stride = 1000;
        batch.length = 600;
        onehop::Peer& peer = side.peer();
        onehop::PreparedBatch put = peer.prepare_put(remote, batch);
        onehop::PreparedBatch get = peer.prepare_get(remote, batch);
        const std::function<onehop::Request()> verbs[] = {
            [&] { return put.post(); },
            [&] { return get.post(); },
            [&] { return peer.put_batch(remote, batch); },
            [&] { return peer.get_batch(remote, batch); },
        };
        std::atomic<int> posts{0};
        std::thread killer([&] {
          while (posts.load() < 21) std::this_thread::yield();
          trap().strike(side.other_process(), SIGKILL);
        });
        oh_status status = OH_OK;
        while (status == OH_OK) {
          const auto& verb = verbs[posts.fetch_add(1) % 4];
          status = status_of([&] { verb().wait(20s); });
        }
        killer.join();
        EXPECT_EQ(status, OH_ERR_PEER_LOST);
        for (const auto& verb : verbs) {
          EXPECT_EQ(status_of([&] { verb().wait(20s); }), OH_ERR_PEER_LOST);
        }
        expect_healthy(side);
      },
      [](Side& side) {
        Buffer buffer = side.buffer(1 << 20);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        while (true) pause();
      });
}

INSTANTIATE_TEST_SUITE_P(Shm, Faults, ::testing::ValuesIn(process_kinds()), name_of);

// Parts of a size for which UCX prefers a rendezvous.
INSTANTIATE_TEST_SUITE_P(LargeParts, Faults,
                         ::testing::Values(LinkKind{.name = "ucx_tcp_large_parts",
                                                    .env = {{"ONEHOP_TRANSPORT", "ucx"},
                                                            {"ONEHOP_UCX_CHUNK", "8388608"},
                                                            {"UCX_TLS", "tcp"},
                                                            {"UCX_NET_DEVICES", "lo"}},
                                                    .path = OH_PATH_UCX}),
                         name_of);

}  // namespace
}  // namespace conformance::deaths
