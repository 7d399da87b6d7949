// SPDX-License-Identifier: Apache-2.0
//
// Failing UCX calls: while a link is created, in the middle of a message, and at the end. The link
// then uses the socket, or the operation ends with an error that names the peer and UCX's call;
// nothing hangs, other links continue, nothing is left open.
#include <algorithm>
#include <tuple>

#include "conformance/faulty_ucx.h"
#include "control/address.h"
#include "sanitizers.h"

namespace conformance::ucx_faults {
namespace {

constexpr size_t kInline = 64;
constexpr size_t kLent = 8 << 10;   // one frame, sent from its own memory
constexpr size_t kLarge = 3 << 20;  // announced, and then sent in parts
constexpr uint64_t kTag = 7;

// UCX fetches the parts of a large message. 1.16 to 1.21 crash in that case when the peer is lost,
// unless UCX hooks into mmap(), which the sanitizers do themselves.
std::map<std::string, std::string> fetched_parts() {
  std::map<std::string, std::string> env = {{"ONEHOP_TRANSPORT", "ucx"},
                                            {"ONEHOP_UCX_CHUNK", "1048576"},
                                            {"UCX_RNDV_SCHEME", "auto"},
                                            {"UCX_RNDV_THRESH", "256k"}};
  if (!kSanitized) env["UCX_MEM_MMAP_HOOK_MODE"] = "bistro";
  return env;
}

// A message of each size there and back.
void exchange(Side& side, onehop::Peer& peer) {
  for (size_t size : {kInline, kLent, kLarge}) {
    Buffer out = side.buffer(size);
    Buffer in = side.buffer(size);
    out.fill(size);
    onehop::Request receive = peer.irecv(in.data(), size, kTag);
    onehop::Request send = peer.isend(out.data(), size, kTag);
    send.wait(20s);
    receive.wait(20s);
    EXPECT_TRUE(in.holds(size, size));
  }
}

// ---- While a link is created ------------------------------------------------------------------

struct Refused {
  const char* rules;
  const char* why;  // the reason that both sides report
};

// A context is created once per process: failures before its creation come first.
constexpr Refused kRefused[] = {
    {"ucp_config_read:1=-4", "ucp_config_read() failed: Out of memory"},
    {"ucp_init_version:1=-22", "ucp_init_version("},
    {"ucp_worker_create:1=-4", "ucp_worker_create() failed: Out of memory"},
    {"ucp_worker_query:1=-3", "ucp_worker_query() failed: Input/output error"},
    {"ucp_worker_get_efd:1=-22", "ucp_worker_get_efd() failed: Unsupported operation"},
    {"ucp_worker_set_am_recv_handler:1=-5", "ucp_worker_set_am_recv_handler() failed: Invalid"},
    {"ucp_worker_query:2=-4", "ucp_worker_query(the address) failed: Out of memory"},
    {"ucp_ep_create:1=-6",
     "ucp_ep_create(the peer's address) failed: Destination is unreachable (-6); UCX "},
};
// The probe: at the initiator UCX reports the error; the acceptor's reply never arrives.
constexpr Refused kProbes[2][4] = {
    {{"ucp_am_send_nbx:1=-4", "ucp_am_send_nbx() failed: Out of memory"},
     {"ucp_am_send_nbx:1=-80:later", "ucp_am_send_nbx() failed: Endpoint timeout"},
     {"ucp_worker_progress:1=-25", "UCX: Connection reset by remote peer"},
     {"ucp_am_send_nbx:1=0:never", "no answer comes back"}},
    {{"ucp_am_send_nbx:1=-4", "no answer comes back"}},
};

class UcxFaultsAtConnect : public ::testing::TestWithParam<std::tuple<int, const char*>> {
 protected:
  int failing() const { return std::get<0>(GetParam()); }
  bool is_forced() const { return std::string(std::get<1>(GetParam())) == "ucx"; }

  // As if the other side were on another host, unless all links use UCX.
  onehop::Bytes address_of_other(Side& side) const {
    onehop::Bytes bytes = side.hear();
    if (is_forced()) return bytes;
    oh::Result<oh::Address> address = oh::Address::decode(bytes);
    address->unix_name.clear();
    address->unix_path.clear();
    EXPECT_FALSE(address->hosts.empty());
    return address->encode();
  }

  static void expect_socket(Side& side, onehop::Peer& peer, const char* why) {
    EXPECT_EQ(peer.info().path, OH_PATH_SOCKET);
    auto row = onehop::detail::sized<oh_path_row>();
    std::string all;
    for (size_t i = 0; oh_peer_get_path(peer.get(), i, &row) == OH_OK; ++i) all += row.why;
    EXPECT_NE(all.find(why), std::string::npos) << all;
    exchange(side, peer);
    side.sync();
  }

  void link(Side& side, const Refused& refused) const {
    SCOPED_TRACE(refused.rules);
    if (side.number() == failing()) set_rules(refused.rules);
    side.sync();
    {
      onehop::Endpoint endpoint;
      if (side.number() == 1) {
        side.tell(endpoint.address());
        if (!is_forced()) {
          onehop::Peer peer = endpoint.accept(20s);
          expect_socket(side, peer, refused.why);
        }
      } else if (is_forced()) {
        onehop::Bytes address = address_of_other(side);
        try {
          (void)endpoint.connect(address, 20s);
          ADD_FAILURE() << "there is a link";
        } catch (const onehop::Error& failure) {
          const std::string text = failure.what();
          EXPECT_EQ(failure.status(), OH_ERR_NOT_VIABLE) << text;
          EXPECT_NE(text.find(refused.why), std::string::npos) << text;
          EXPECT_NE(text.find(oh::Address::decode(address)->label), std::string::npos) << text;
        }
      } else {
        onehop::Peer peer = endpoint.connect(address_of_other(side), 20s);
        expect_socket(side, peer, refused.why);
      }
      side.sync();
    }
    if (side.number() == failing()) {
      EXPECT_EQ(seam().struck(), 1u);
    }
    EXPECT_TRUE(nothing_is_open());
    set_rules("");
  }
};

TEST_P(UcxFaultsAtConnect, TheLinkIsOverTheSocketOrAnError) {
  if (kSanitized && is_forced() != (failing() == 1)) GTEST_SKIP() << "half of them, when slow";
  run_faulty({{"ONEHOP_TRANSPORT", std::get<1>(GetParam())}}, [&](Side& side) {
    for (const Refused& refused : kRefused) link(side, refused);
    for (const Refused& refused : kProbes[failing()]) {
      if (refused.rules) link(side, refused);
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Sides, UcxFaultsAtConnect,
                         ::testing::Combine(::testing::Values(0, 1),
                                            ::testing::Values("auto", "ucx")),
                         [](const auto& test) {
                           return std::string(std::get<0>(test.param) ? "acceptor_"
                                                                      : "initiator_") +
                                  std::get<1>(test.param);
                         });

// ---- Later ------------------------------------------------------------------------------------

struct Blow {
  int failing;  // 0 sends, 1 receives
  const char* rules;
  size_t size;
  oh_status ends[2];  // of the send, and of the receive
  const char* why;    // the reason that the failing side reports
};

constexpr const char* kNoMemory = "ucp_am_send_nbx() failed: Out of memory";
constexpr oh_status kLost = OH_ERR_PEER_LOST;
constexpr Blow kBlows[] = {
    // A small message, whose sender completes at once.
    {0, "ucp_am_send_nbx:1=-4", kInline, {OH_OK, kLost}, kNoMemory},
    {0, "ucp_am_send_nbx:1=-2", kInline, {OH_OK, kLost}, "ucp_am_send_nbx() failed: No resources"},
    {0, "ucp_am_send_nbx:1=-4:later", kInline, {OH_OK, kLost}, kNoMemory},
    {0, "ucp_am_send_nbx:1=-4", kLent, {kLost, kLost}, kNoMemory},
    {0, "ucp_am_send_nbx:1=-4:later", kLent, {kLost, kLost}, kNoMemory},
    // Announced, requested, and sent in parts.
    {0, "ucp_am_send_nbx:1=-4", kLarge, {kLost, kLost}, kNoMemory},
    {1, "ucp_am_send_nbx:1=-4", kLarge, {kLost, kLost}, kNoMemory},
    {1, "ucp_am_send_nbx:1=-4:later", kLarge, {kLost, kLost}, kNoMemory},
    {0, "ucp_am_send_nbx:2=-4", kLarge, {kLost, kLost}, kNoMemory},
    {0, "ucp_am_send_nbx:3=-4", kLarge, {kLost, kLost}, kNoMemory},
    {0, "ucp_am_send_nbx:3=-4:later", kLarge, {kLost, kLost}, kNoMemory},
    {0, "ucp_am_send_nbx:3=-25:later", kLarge, {kLost, kLost}, "ucp_am_send_nbx() failed: Conn"},
    {0, "ucp_worker_progress:2=-25", kLarge, {kLost, kLost}, "UCX: Connection reset"},
    {1, "ucp_worker_progress:1=-80", kLarge, {kLost, kLost}, "UCX: Endpoint timeout"},
    // Requests that never complete.
    {0, "ucp_am_send_nbx:1=0:never", kLent, {OH_ERR_IN_DOUBT, OH_ERR_TIMEOUT}, "buffer_released"},
    {0, "ucp_am_send_nbx:1=0:never", kLarge, {OH_ERR_TIMEOUT, OH_ERR_TIMEOUT}, "deadline"},
    {0, "ucp_am_send_nbx:3=0:never", kLarge, {OH_ERR_IN_DOUBT, OH_ERR_TIMEOUT}, "buffer_released"},
    {1, "ucp_am_send_nbx:1=0:never", kLarge, {OH_ERR_TIMEOUT, OH_ERR_TIMEOUT}, "deadline"},
};
// Parts that UCX fetches.
constexpr const char* kNotFetched = "ucp_am_recv_data_nbx() failed: Out of memory";
constexpr Blow kFetching[] = {
    {1, "ucp_am_recv_data_nbx:1=-4", kLarge, {kLost, kLost}, kNotFetched},
    {1, "ucp_am_recv_data_nbx:2=-4", kLarge, {kLost, kLost}, kNotFetched},
    {1, "ucp_am_recv_data_nbx:1=-4:later", kLarge, {OH_OK, kLost}, kNotFetched},
    {1, "ucp_am_recv_data_nbx:2=0:never", kLarge, {OH_ERR_IN_DOUBT, OH_ERR_IN_DOUBT}, "released"},
    {0, "ucp_am_send_nbx:3=-4:later", kLarge, {kLost, kLost}, kNoMemory},
};

class UcxFaultsLater : public ::testing::Test {
 protected:
  static void strike(Side& side, const Blow& blow) {
    SCOPED_TRACE(std::string(blow.rules) + " at side " + std::to_string(blow.failing) + " with " +
                 std::to_string(blow.size) + " bytes");
    {
      Links links(side);
      onehop::Peer& peer = *links.peers[0];
      EXPECT_EQ(peer.info().path, OH_PATH_UCX);
      const std::string label = peer.info().label;
      Buffer buffer = side.buffer(blow.size);
      side.sync();
      if (side.number() == blow.failing) set_rules(blow.rules);
      std::optional<onehop::Request> request;
      if (side.number() == 1) request.emplace(peer.irecv(buffer.data(), blow.size, kTag));
      side.sync();

      const oh_status expected = blow.ends[side.number()];
      const bool lost = blow.ends[1] == kLost;
      End end = end_of([&] {
        if (side.number() == 0) request.emplace(peer.isend(buffer.data(), blow.size, kTag));
        request->wait(expected == kLost || !expected ? 20s : 200ms);
      });
      // Buffers that a lost link has left in UCX are in doubt until UCX releases them. A send is
      // successful when UCX completes it, which may be later than the loss.
      const bool may_be_lost = lost && (expected == kLost || expected == OH_OK);
      EXPECT_TRUE(end.status == expected ||
                  (may_be_lost && (end.status == kLost || end.status == OH_ERR_IN_DOUBT)))
          << oh_status_name(expected) << ", but " << end.text;
      EXPECT_TRUE(!end.status || end.text.find(label) != std::string::npos) << end.text;
      // The next operation reports it, too.
      uint64_t word = 0;
      if (lost) {
        End next = end_of([&] { peer.irecv(&word, sizeof(word), kTag + 1).wait(20s); });
        EXPECT_EQ(next.status, kLost) << next.text;
        EXPECT_NE(next.text.find(label), std::string::npos) << next.text;
        if (!end.status) end = next;
      }
      if (side.number() == blow.failing) {
        EXPECT_NE(end.text.find(blow.why), std::string::npos) << end.text;
      }
      exchange(side, *links.peers[1]);
      side.sync();
      peer.close();
      EXPECT_TRUE(eventually([&] { return !request || request->buffer_released(); }));
      side.sync();
    }
    if (side.number() == blow.failing) {
      EXPECT_GE(seam().struck(), 1u);
    }
    set_rules("");
    EXPECT_TRUE(nothing_is_open());
  }
};

TEST_F(UcxFaultsLater, TheOperationEndsAndOtherLinksGoOn) {
  run_faulty({{"ONEHOP_TRANSPORT", "ucx"}}, [](Side& side) {
    for (size_t i = 0; i < std::size(kBlows); i += kSanitized ? 3 : 1) strike(side, kBlows[i]);
  });
}

TEST_F(UcxFaultsLater, SoDoesAReceiveWhosePartsUcxFetches) {
  run_faulty(fetched_parts(), [](Side& side) {
    for (const Blow& blow : kFetching) strike(side, blow);
  });
}

// UCX fetches a part for a receive whose sender has given up, and a later message has its name.
TEST_F(UcxFaultsLater, AReceiveIsInDoubtWhoeverHasItsNameNow) {
  run_faulty(fetched_parts(), [](Side& side) {
    {
      Links links(side);
      onehop::Peer& peer = *links.peers[0];
      Buffer buffer = side.buffer(kLarge);
      Buffer next = side.buffer(kLarge);
      std::optional<onehop::Request> request;
      if (side.number() == 0) {
        side.sync();
        request.emplace(peer.isend(buffer.data(), kLarge, kTag));
        EXPECT_EQ(status_of([&] { request->wait(200ms); }), OH_ERR_IN_DOUBT);
        next.fill(2);
        peer.send(next.data(), kLarge, kTag + 1, 20s);
        side.sync();
      } else {
        set_rules("ucp_am_recv_data_nbx:1=0:never");
        request.emplace(peer.irecv(buffer.data(), kLarge, kTag));
        onehop::Request second = peer.irecv(next.data(), kLarge, kTag + 1);
        side.sync();
        second.wait(20s);
        EXPECT_TRUE(next.holds(2, kLarge));
        side.sync();
        EXPECT_EQ(status_of([&] { request->wait(50ms); }), OH_ERR_IN_DOUBT);
        EXPECT_FALSE(request->buffer_released());
      }
      peer.close();
      EXPECT_TRUE(eventually([&] { return request->buffer_released(); }));
      side.sync();
    }
    set_rules("");
    EXPECT_TRUE(nothing_is_open());
  });
}

// Both sides close, one of them with a failing UCX call: earlier messages have arrived, and closing
// ends.
TEST_F(UcxFaultsLater, ALinkIsClosedWhateverUcxSays) {
  run_faulty({{"ONEHOP_TRANSPORT", "ucx"}}, [](Side& side) {
    for (const char* rules :
         {"ucp_ep_flush_nbx:1=-4", "ucp_ep_flush_nbx:1=-25:later", "ucp_ep_close_nbx:1=-4",
          "ucp_ep_close_nbx:1=-80:later", "ucp_ep_flush_nbx:1=0:never,ucp_ep_close_nbx:1=0:never",
          "ucp_worker_arm:1+=-3"}) {
      SCOPED_TRACE(rules);
      {
        Links links(side);
        onehop::Peer& peer = *links.peers[0];
        Buffer buffer = side.buffer(kLent);
        if (side.number() == 0) {
          set_rules(rules);
          // This side sleeps.
          EXPECT_EQ(end_of([&] { peer.recv(buffer.data(), kLent, kTag, 30ms); }).status,
                    OH_ERR_TIMEOUT);
          buffer.fill(1);
          peer.send(buffer.data(), kLent, kTag);
          peer.close();
        } else {
          peer.recv(buffer.data(), kLent, kTag, 20s);
          EXPECT_TRUE(buffer.holds(1, kLent));
          const End end = end_of([&] { peer.recv(buffer.data(), kLent, kTag, 20s); });
          EXPECT_EQ(end.status, kLost) << end.text;
        }
        exchange(side, *links.peers[1]);
        side.sync();
      }
      if (side.number() == 0) {
        EXPECT_GE(seam().struck(), 1u);
      }
      set_rules("");
      EXPECT_TRUE(nothing_is_open());
    }
  });
}

// A message that UCX completes while the link is flushed was sent.
TEST_F(UcxFaultsLater, WhatIsFlushedAtTheEndHasEndedWell) {
  run_faulty({{"ONEHOP_TRANSPORT", "ucx"}}, [](Side& side) {
    {
      Links links(side);
      Buffer buffer = side.buffer(kLent);
      if (side.number() == 0) {
        set_rules("ucp_am_send_nbx:1=0:later,ucp_ep_flush_nbx:1=0:later");
        onehop::Request send = links.peers[0]->isend(buffer.data(), kLent, kTag);
        links.peers[0]->close();
        EXPECT_EQ(seam().struck(), 2u);
        EXPECT_EQ(status_of([&] { send.wait(20s); }), OH_OK);
      }
      side.sync();
    }
    set_rules("");
    EXPECT_TRUE(nothing_is_open());
  });
}

// UCX uses local memory when its link, and then its endpoint, is gone. It releases the memory when
// its worker is destroyed: until then everything it accesses must exist.
class UcxKeeps : public UcxFaultsLater {
 protected:
  // Whether the request's handle is released before those of the link and the endpoint.
  static void keep(Side& side, const Blow& blow, bool request_first) {
    SCOPED_TRACE(std::string(blow.rules) + " at side " + std::to_string(blow.failing) + " with " +
                 std::to_string(blow.size) + " bytes");
    Buffer buffer = side.buffer(blow.size);
    std::optional<onehop::Request> request;
    {
      Links links(side);
      onehop::Peer& peer = *links.peers[0];
      side.sync();
      if (side.number() == blow.failing) set_rules(blow.rules);
      if (side.number() == 1) request.emplace(peer.irecv(buffer.data(), blow.size, kTag));
      side.sync();
      if (side.number() == 0) request.emplace(peer.isend(buffer.data(), blow.size, kTag));
      // Until the call that is kept was made; calls of the end are made below.
      if (side.number() == blow.failing &&
          std::string(blow.rules).find("_ep_") == std::string::npos) {
        EXPECT_TRUE(eventually([&] {
          links.endpoint.progress();
          return seam().struck() > 0;
        }));
      }
      if (side.number() != blow.failing) {
        (void)end_of([&] { request->wait(100ms); });
      }
      side.sync();
      // The failing side first: a link that the other side has closed is not flushed.
      if (side.number() != blow.failing) side.sync();
      peer.close();
      if (side.number() == blow.failing) {
        EXPECT_GE(seam().struck(), 1u);
        side.sync();
      }
      set_rules("");
      if (request_first) request.reset();
      links.peers[0].reset();
      exchange(side, *links.peers[1]);
      side.sync();
    }
    if (request) {
      (void)end_of([&] { request->wait(20s); });
      request.reset();
    }
    EXPECT_TRUE(nothing_is_open());
    side.sync();
  }
};

TEST_F(UcxKeeps, WhatIsSentOrClosedBeyondTheEndOfTheEndpoint) {
  run_faulty({{"ONEHOP_TRANSPORT", "ucx"}}, [](Side& side) {
    for (const Blow& blow :
         {Blow{0, "ucp_am_send_nbx:1=0:last", kInline, {}, ""},
          Blow{0, "ucp_am_send_nbx:1=0:last", kLent, {}, ""},
          Blow{0, "ucp_am_send_nbx:2=0:last", kLarge, {}, ""},
          Blow{0, "ucp_am_send_nbx:2+=0:last", kLarge, {}, ""},
          Blow{1, "ucp_am_send_nbx:1=0:last", kLarge, {}, ""},
          Blow{0, "ucp_ep_close_nbx:1=0:last", kLent, {}, ""},
          Blow{1, "ucp_ep_close_nbx:1=0:last", kLent, {}, ""},
          Blow{0, "ucp_ep_flush_nbx:1=0:last", kLent, {}, ""},
          Blow{0, "ucp_ep_flush_nbx:1=0:last,ucp_ep_close_nbx:1=0:last", kInline, {}, ""}}) {
      for (bool request_first : {true, false}) keep(side, blow, request_first);
    }
  });
}

TEST_F(UcxKeeps, WhatIsFetchedBeyondTheEndOfTheEndpoint) {
  run_faulty(fetched_parts(), [](Side& side) {
    for (const Blow& blow : {Blow{1, "ucp_am_recv_data_nbx:1=0:last", kLarge, {}, ""},
                             Blow{1, "ucp_am_recv_data_nbx:2+=0:last", kLarge, {}, ""}}) {
      for (bool request_first : {true, false}) keep(side, blow, request_first);
    }
  });
}

}  // namespace
}  // namespace conformance::ucx_faults
