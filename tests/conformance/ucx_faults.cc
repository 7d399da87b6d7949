// SPDX-License-Identifier: Apache-2.0
//
// Calls of UCX that fail: while a link is made, in the middle of a message, and at the end.
// Whatever fails: the link is made over the socket, or the operation ends with an error that names
// the peer and UCX's call; nothing hangs, other links go on, nothing is left open.
#include <dlfcn.h>

#include <algorithm>
#include <tuple>

#include "conformance/fake_driver.h"
#include "control/address.h"
#include "faulty_ucx/control.h"
#include "sanitizers.h"

namespace conformance {
namespace {

using namespace std::chrono_literals;

constexpr size_t kInline = 64;
constexpr size_t kLent = 8 << 10;   // one frame, from where it is
constexpr size_t kLarge = 3 << 20;  // announced, and then in parts
constexpr uint64_t kTag = 7;

struct Seam {
  decltype(&faulty_ucx_fail) fail;
  decltype(&faulty_ucx_struck) struck;
  decltype(&faulty_ucx_counts) counts;
};

const Seam& seam() {
  static const Seam only = [] {
    void* library = dlopen(FAULTY_UCX_LIBRARY, RTLD_NOW | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();
    auto find = [&](auto* function, const char* name) {
      return reinterpret_cast<decltype(function)>(dlsym(library, name));
    };
    return Seam{find(&faulty_ucx_fail, "faulty_ucx_fail"),
                find(&faulty_ucx_struck, "faulty_ucx_struck"),
                find(&faulty_ucx_counts, "faulty_ucx_counts")};
  }();
  return only;
}

void set_rules(const std::string& rules) { ASSERT_EQ(seam().fail(rules.c_str()), 0) << rules; }

// Everything of UCX has been given back, also what the watcher's thread lets go of.
::testing::AssertionResult nothing_is_open() {
  FaultyUcxCounts open{};
  auto count = [&] {
    seam().counts(&open);
    return open.configs + open.workers + open.addresses + open.endpoints + open.requests +
           open.data;
  };
  if (!eventually([&] { return count() == 0; })) {
    return ::testing::AssertionFailure()
           << "open: " << open.configs << " configs, " << open.workers << " workers, "
           << open.addresses << " addresses, " << open.endpoints << " endpoints, " << open.requests
           << " requests, " << open.data << " data";
  }
  return ::testing::AssertionSuccess();
}

// Both sides in processes of their own, with the seam between onehop and UCX.
void run_faulty(const std::map<std::string, std::string>& env, const Role& role) {
  if (!has_ucx()) GTEST_SKIP() << "no UCX here: libucp.so.0 of 1.13 or newer";
  LinkKind kind{.name = "faulty",
                .env = {{"UCX_TLS", "tcp"},
                        {"UCX_NET_DEVICES", "lo"},
                        {"ONEHOP_INTERFACE", "127.0.0.1"},
                        {"ONEHOP_HELLO_TIMEOUT", "2"},
                        {"ONEHOP_LOG", "off"}},
                .path = OH_PATH_UCX};
  kind.env.insert(env.begin(), env.end());
  const Role with_seam = [&](Side& side) {
    if (const char* real = getenv("ONEHOP_UCX_LIBRARY")) setenv("FAULTY_UCX_REAL", real, 1);
    setenv("ONEHOP_UCX_LIBRARY", FAULTY_UCX_LIBRARY, 1);
    role(side);
  };
  run_apart(kind, with_seam, with_seam);
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

// ---- While a link is made ---------------------------------------------------------------------

struct Refused {
  const char* rules;
  const char* why;  // what both sides say
};

// A context is made once per process: what fails before it is there comes first.
constexpr Refused kRefused[] = {
    {"ucp_config_read:1=-4", "ucp_config_read() failed: Out of memory"},
    {"ucp_init_version:1=-22", "ucp_init_version("},
    {"ucp_worker_create:1=-4", "ucp_worker_create() failed: Out of memory"},
    {"ucp_worker_query:1=-3", "ucp_worker_query() failed: Input/output error"},
    {"ucp_worker_get_efd:1=-22", "ucp_worker_get_efd() failed: Unsupported operation"},
    {"ucp_worker_set_am_recv_handler:1=-5", "ucp_worker_set_am_recv_handler() failed: Invalid"},
    {"ucp_worker_query:2=-4", "ucp_worker_query(the address) failed: Out of memory"},
    {"ucp_ep_create:1=-6", "ucp_ep_create(the peer's address) failed: Destination is unreachable"},
};
// The probe: at the initiator UCX says what is wrong, of the acceptor's answer nothing is heard.
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

  // As if the other side were on another host, unless all links go over UCX.
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

}  // namespace
}  // namespace conformance
