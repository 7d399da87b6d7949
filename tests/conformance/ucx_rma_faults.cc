// SPDX-License-Identifier: Apache-2.0
//
// Failing calls of UCX's remote memory access, and their number. If no key is available operations
// go as messages; every other failure ends the link with an error that names the peer and UCX's
// call. Nothing is left open, other links continue.
#include "capi/handles.h"
#include "conformance/batches.h"
#include "conformance/faulty_ucx.h"
#include "sanitizers.h"

namespace conformance::ucx_rma_faults {
namespace {

constexpr size_t kSize = 3 << 20;
constexpr size_t kPiece = 1 << 20;  // limit of the bytes that UCX gets at once
const std::map<std::string, std::string> kEnv = {{"ONEHOP_TRANSPORT", "ucx"},
                                                 {"ONEHOP_UCX_RMA", "on"}};

struct Blow {
  int failing;  // 0 puts and gets, 1 owns the region
  const char* rules;
  bool put;
  oh_status status;  // of the operation
  const char* why;   // the reason that the failing side reports for the link or the operation
};

constexpr oh_status kLost = OH_ERR_PEER_LOST;
// If the link is lost nothing was sent: a single piece, which fails or was never posted. See
// ucx_rma.cc.
constexpr Blow kBlows[] = {
    {0, "ucp_put_nbx:1=-4", true, kLost, "ucp_put_nbx() failed: Out of memory"},
    {0, "ucp_put_nbx:1=-4:later", true, kLost, "ucp_put_nbx() failed: Out of memory"},
    {0, "ucp_put_nbx:1=0:later,ucp_ep_flush_nbx:1=-4", true, kLost,
     "ucp_ep_flush_nbx() failed: Out"},
    {0, "ucp_put_nbx:1=0:later,ucp_ep_flush_nbx:1=-25:later", true, kLost,
     "ucp_ep_flush_nbx() failed: Conn"},
    {0, "ucp_get_nbx:1=-3", false, kLost, "ucp_get_nbx() failed: Input/output error"},
    {0, "ucp_get_nbx:1=-4:later", false, kLost, "ucp_get_nbx() failed: Out of memory"},
    // Requests that never complete.
    {0, "ucp_put_nbx:2=0:never", true, OH_ERR_IN_DOUBT, "buffer_released"},
    {0, "ucp_get_nbx:1=0:never", false, OH_ERR_IN_DOUBT, "buffer_released"},
    {0, "ucp_ep_flush_nbx:1=0:never", true, OH_ERR_TIMEOUT, "deadline"},
    // No key: sent as messages.
    {0, "ucp_ep_rkey_unpack:1=-4", true, OH_OK, ""},
    {1, "ucp_mem_map:1=-4", true, OH_OK, ""},
    {1, "ucp_rkey_pack:1=-4", false, OH_OK, ""},
    {1, "ucp_mem_unmap:1=-4", true, OH_OK, ""},
};

class UcxRmaFaults : public ::testing::Test {
 protected:
  // One region on side 1, attached by side 0 over both links.
  static void strike(Side& side, const Blow& blow) {
    SCOPED_TRACE(std::string(blow.rules) + " at side " + std::to_string(blow.failing));
    {
      Links links(side);
      Buffer buffer = side.buffer(kSize);
      buffer.poison();
      if (side.number() == blow.failing) set_rules(blow.rules);
      side.sync();
      side.number() == 0 ? move(side, links, buffer, blow) : own(side, links, buffer, blow);
      side.sync();
    }
    if (side.number() == blow.failing) {
      EXPECT_GE(seam().struck(), 1u);
    }
    set_rules("");
    EXPECT_TRUE(nothing_is_open());
  }

  static void move(Side& side, Links& links, Buffer& buffer, const Blow& blow) {
    onehop::Peer& peer = *links.peers[0];
    const std::string label = peer.info().label;
    onehop::Bytes descriptor = side.hear();
    buffer.fill(1);
    onehop::RemoteRegion remote = peer.attach(descriptor);
    std::optional<onehop::Request> request;
    End end = end_of([&] {
      const size_t size = blow.status == kLost ? kPiece : kSize;
      request.emplace(blow.put ? peer.put(buffer.data(), remote, 0, size)
                               : peer.get(buffer.data(), remote, 0, size));
      request->wait(blow.status == OH_OK || blow.status == kLost ? 20s : 200ms);
    });
    // Buffers that a lost link has left in UCX are in doubt until UCX releases them.
    EXPECT_TRUE(end.status == blow.status ||
                (blow.status == kLost && end.status == OH_ERR_IN_DOUBT))
        << oh_status_name(blow.status) << ", but " << end.text;
    EXPECT_TRUE(!end.status || end.text.find(label) != std::string::npos) << end.text;
    EXPECT_NE(end.text.find(blow.why), std::string::npos) << end.text;
    // The other link.
    onehop::RemoteRegion beside = links.peers[1]->attach(descriptor);
    Buffer other = side.buffer(kSize);
    other.fill(2);
    links.peers[1]->put(other.data(), beside, 0, kSize).wait(20s);
    side.sync();
    peer.close();
    EXPECT_TRUE(eventually([&] { return !request || request->buffer_released(); }));
  }

  static void own(Side& side, Links& links, Buffer& buffer, const Blow& blow) {
    onehop::Region region = links.endpoint.register_memory(buffer.data(), buffer.size());
    side.tell(region.descriptor());
    side.sync();
    meet_threads(*links.peers[1]);
    EXPECT_TRUE(buffer.holds(2, kSize));
    if (blow.status == kLost) {
      uint64_t word = 0;
      End next = end_of([&] { links.peers[0]->recv(&word, sizeof(word), 1, 20s); });
      EXPECT_EQ(next.status, kLost) << next.text;
    }
    region.deregister(20s);
  }
};

TEST_F(UcxRmaFaults, TheOperationEndsAndOtherLinksGoOn) {
  run_faulty(kEnv, [](Side& side) {
    for (size_t i = 0; i < std::size(kBlows); i += kSanitized ? 3 : 1) strike(side, kBlows[i]);
  });
}

// However many blocks a batch has, and however often it is posted, each post makes one flush.
TEST_F(UcxRmaFaults, ABatchMakesOneFlush) {
  static constexpr size_t kCount = 1000;
  run_faulty(kEnv, [](Side& side) {
    {
      Links links(side);
      Buffer buffer = side.buffer(kCount * 256);
      buffer.poison();
      if (side.number() == 1) {
        onehop::Region region = links.endpoint.register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        for (uint64_t seed : {0, 1}) {
          links.peers[0]->wait_signal(1, 1, 20s);
          const onehop::Bytes sent = pattern(seed, buffer.size());
          const onehop::Bytes came = buffer.bytes();
          for (size_t i = 0; i < kCount; ++i) {
            ASSERT_TRUE(std::equal(&came[i * 256], &came[i * 256 + 100], &sent[i * 256])) << i;
            ASSERT_EQ(came[i * 256 + 100], 0xee) << i;
          }
          meet_threads(*links.peers[0]);
          side.sync();
        }
      } else {
        onehop::Peer& peer = *links.peers[0];
        onehop::RemoteRegion remote = peer.attach(side.hear());
        oh_batch batch = batch_of(buffer);
        batch.count = kCount;
        batch.local_stride = batch.remote_stride = 256;
        batch.length = 100;
        onehop::PreparedBatch put = peer.prepare_put(remote, batch);
        for (uint64_t seed : {0, 1}) {
          buffer.fill(seed);
          const uint64_t puts = seam().calls("ucp_put_nbx");
          const uint64_t flushes = seam().calls("ucp_ep_flush_nbx");
          onehop::Request post = put.post();
          peer.signal(1);
          post.wait(20s);
          EXPECT_EQ(seam().calls("ucp_put_nbx") - puts, kCount);
          EXPECT_EQ(seam().calls("ucp_ep_flush_nbx") - flushes, 1u);
          side.sync();
        }
      }
      side.sync();
    }
    EXPECT_TRUE(nothing_is_open());
  });
}

// A put's notification waits for that put and earlier ones, not for later ones.
TEST_F(UcxRmaFaults, ANotificationDoesNotWaitForLaterPuts) {
  run_faulty(kEnv, [](Side& side) {
    {
      Links links(side);
      onehop::Peer& peer = *links.peers[0];
      Buffer buffer = side.buffer(2 * kPiece);
      const onehop::Bytes notes[] = {{1}, {2}};
      if (side.number() == 0) {
        buffer.fill(1);
        onehop::RemoteRegion remote = peer.attach(side.hear());
        peer.put(buffer.data(), remote, 0, 1).wait(20s);  // the key has arrived
        set_rules("ucp_put_nbx:2=0:never");
        onehop::Request first = peer.put(buffer.data(), remote, 0, kPiece, &notes[0]);
        onehop::Request second =
            peer.put(buffer.data() + kPiece, remote, kPiece, kPiece, &notes[1]);
        EXPECT_EQ(status_of([&] { first.wait(20s); }), OH_OK);
        side.sync();
        EXPECT_EQ(status_of([&] { second.wait(50ms); }), OH_ERR_IN_DOUBT);
        peer.close();
        EXPECT_TRUE(eventually([&] { return second.buffer_released(); }));
        side.sync();
      } else {
        onehop::Region region = links.endpoint.register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        side.sync();
        auto notification = links.endpoint.notification();
        while (!notification) {
          links.endpoint.progress();
          notification = links.endpoint.notification();
        }
        EXPECT_EQ(notification->second, notes[0]);
        EXPECT_TRUE(buffer.holds(1, kPiece));
        side.sync();
        EXPECT_FALSE(links.endpoint.notification());
      }
      side.sync();
    }
    set_rules("");
    EXPECT_TRUE(nothing_is_open());
  });
}

// UCX may still move the bytes of an abandoned put: a signal after it must wait.
TEST_F(UcxRmaFaults, ASignalWaitsForAPutThatWasGivenUp) {
  run_faulty(kEnv, [](Side& side) {
    {
      Links links(side);
      onehop::Peer& peer = *links.peers[0];
      Buffer buffer = side.buffer(kPiece);
      uint64_t word = 0;
      if (side.number() == 0) {
        onehop::RemoteRegion remote = peer.attach(side.hear());
        peer.put(buffer.data(), remote, 0, 1).wait(20s);
        set_rules("ucp_put_nbx:1=0:never");
        onehop::Request put = peer.put(buffer.data(), remote, 0, kPiece);
        peer.signal(1);
        EXPECT_EQ(status_of([&] { put.wait(50ms); }), OH_ERR_IN_DOUBT);
        (void)peer.get()->peer->operations().progress(nullptr);
        peer.send(&word, sizeof(word), 1, 20s);  // would arrive after the signal
        side.sync();
        peer.close();
        EXPECT_TRUE(eventually([&] { return put.buffer_released(); }));
      } else {
        onehop::Region region = links.endpoint.register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        peer.recv(&word, sizeof(word), 1, 20s);
        EXPECT_EQ(status_of([&] { peer.wait_signal(1, 1, 1ms); }), OH_ERR_TIMEOUT);
        side.sync();
      }
      side.sync();
    }
    set_rules("");
    EXPECT_TRUE(nothing_is_open());
  });
}

}  // namespace
}  // namespace conformance::ucx_rma_faults
