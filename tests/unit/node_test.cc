// SPDX-License-Identifier: Apache-2.0
//
// Endpoints of a process share its sockets, and therefore some settings.
#include "control/node.h"

#include <netinet/in.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "endpoint/endpoint.h"
#include "platform/os/os.h"
#include "unit/support.h"

namespace node_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

using Variables = std::map<std::string, std::string>;

Result<std::shared_ptr<Endpoint>> create(const Variables& variables) {
  return Endpoint::create(unit::config_with(variables), {});
}

TEST(NodeTest, SettingsThatComeTooLateAreAnError) {
  unit::TempDir folder;
  Result<std::shared_ptr<Endpoint>> first = create({{"ONEHOP_INTERFACE", "127.0.0.1"}});
  ASSERT_TRUE(is_ok(first));
  const Variables same = {{"ONEHOP_INTERFACE", "127.0.0.1"}};
  EXPECT_TRUE(is_ok(create(same)));
  const std::tuple<const char*, std::string, const char*> late[] = {
      {"ONEHOP_INTERFACE", "any", "ONEHOP_INTERFACE=any comes too late"},
      {"ONEHOP_PORT_RANGE", "41000-41010", "of this process use 40000-44000"},
      {"ONEHOP_SOCKET_DIR", folder.path(), "of this process use /tmp"},
      {"ONEHOP_HELLO_TIMEOUT", "0.5", "ONEHOP_HELLO_TIMEOUT=0.5 comes too late"},
  };
  for (const auto& [name, value, text] : late) {
    Variables variables = same;
    variables[name] = value;
    EXPECT_TRUE(fails_with(create(variables), OH_ERR_CONFIG, text));
    EXPECT_TRUE(fails_with(create(variables), OH_ERR_CONFIG, "or close all of them first"));
  }
  // Settings of the endpoint itself may differ.
  EXPECT_TRUE(is_ok(create({{"ONEHOP_INTERFACE", "127.0.0.1"}, {"ONEHOP_MAX_INLINE", "100"}})));
}

TEST(NodeTest, OnceAllAreClosedTheNextSettingsHold) {
  unit::TempDir folder;
  Result<std::shared_ptr<Endpoint>> first = create({});
  ASSERT_TRUE(is_ok(first));
  (*first)->close();  // another reference remains
  Result<std::shared_ptr<Endpoint>> next =
      create({{"ONEHOP_SOCKET_DIR", folder.path()}, {"ONEHOP_INTERFACE", "127.0.0.1"}});
  ASSERT_TRUE(is_ok(next));
  const Address& address = (*next)->own_address();
  EXPECT_TRUE(address.unix_path.starts_with(folder.path()));
  ASSERT_EQ(address.hosts.size(), 1u);
  EXPECT_TRUE(address.hosts[0].text().starts_with("127.0.0.1:"));
  EXPECT_TRUE(fails_with(create({}), OH_ERR_CONFIG));
}

// A thread that is at it for as long as its process lives.
class StalledOs final : public Os {
 public:
  int getrandom(void*, size_t) override {
    stalled.store(true);
    while (true) pause();
  }
  std::atomic<bool> stalled{false};
};

// What the thread of the parent holds, no thread of the child gives back.
TEST(NodeTest, AChildOfForkNeedsNoLockOfItsParents) {
#if defined(OH_THREAD_SANITIZER)
  GTEST_SKIP() << "ThreadSanitizer lets no child of a process with threads start any of its own";
#endif
  unit::in_child([] {
    static StalledOs stalling;
    os_replace(&stalling);
    std::thread([] { (void)Node::get(unit::config_with()).ok(); }).detach();
    ASSERT_TRUE(unit::eventually([] { return stalling.stalled.load(); }));
    unit::in_child([] {
      alarm(20);
      os_replace(nullptr);
      EXPECT_TRUE(is_ok(create({{"ONEHOP_INTERFACE", "127.0.0.1"}})));
    });
  });
}

}  // namespace
}  // namespace node_test
