// SPDX-License-Identifier: Apache-2.0
//
// The end of an endpoint, of a peer or of a message, while another thread is in a call about a
// receive from any source. Fault points order the steps: what they do runs in the thread that
// passes them.
#include <sys/socket.h>

#include <functional>
#include <memory>
#include <string_view>
#include <utility>

#include "base/fault.h"
#include "endpoint/endpoint.h"
#include "unit/support.h"

namespace {

using namespace oh;
using unit::fails_with;

class RacedEnds : public ::testing::Test {
 protected:
  ~RacedEnds() override { g_fault_hook.store(nullptr); }

  // Does `work` once, when a thread comes to the point.
  static void at(const char* point, std::function<void()> work) {
    point_ = point;
    work_ = std::move(work);
    g_fault_hook.store([](const char* passed) {
      if (!work_ || std::string_view(passed) != point_) return;
      std::exchange(work_, nullptr)();
    });
  }
  static bool came_by() { return !work_; }

  static inline std::string_view point_;
  static inline std::function<void()> work_;
};

std::shared_ptr<Endpoint> make_endpoint() {
  Result<Config> config = Config::from([](const char* name) -> const char* {
    std::string_view wanted = name;
    if (wanted == "ONEHOP_LOG") return "off";
    return wanted == "ONEHOP_INTERFACE" ? "127.0.0.1" : nullptr;
  });
  return *Endpoint::create(*config, {});
}

// ---- The endpoint is closed

// The watcher must not keep a link that nobody will close again.
TEST_F(RacedEnds, AnEndpointIsClosedWhileALinkComesAbout) {
  std::shared_ptr<Endpoint> endpoint = make_endpoint();
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
  UniqueFd theirs(ends[0]);
  LinkParts parts;
  parts.identity.label = "the other side";
  parts.mine = parts.theirs = endpoint->limits();
  parts.connection = std::make_shared<Connection>(endpoint->shared_node(),
                                                  MessageSocket(UniqueFd(ends[1]), 1 << 20), 0);
  std::weak_ptr<Connection> connection = parts.connection;
  auto peer = std::make_shared<Peer>(endpoint, std::move(parts));
  at("endpoint.adopted", [&] { endpoint->close(); });
  EXPECT_TRUE(fails_with(endpoint->adopt(peer), OH_ERR_CLOSED));
  EXPECT_TRUE(came_by());
  peer.reset();
  EXPECT_TRUE(connection.expired());
}

}  // namespace
