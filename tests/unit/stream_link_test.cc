// SPDX-License-Identifier: Apache-2.0
//
// StreamLink: what it takes from the peer's message about lanes.
#include "lane/stream_link.h"

#include <optional>

#include "link/connection.h"
#include "unit/stream_side.h"

namespace unit::stream_link_test {
namespace {

using namespace oh;

class StreamLinkTest : public StreamSideTest {
 protected:
  void SetUp() override {
    StreamSideTest::SetUp();
    auto [ours, theirs] = socket_pair();
    there_ = std::move(theirs);
    connection_ =
        std::make_shared<Connection>(*Node::get(config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}})),
                                     MessageSocket(std::move(ours), 1 << 20), /*pid=*/0);
    fakes_.link.my_bell = &page.doorbell();
    // Without streams, so that the message has no further effect.
    link_.emplace(fakes_.link, StreamLink::Parts{domain, connection_, gpu},
                  StreamLink::WhyNot{.at_all = "a test", .by_kernels = {}, .ask_by_kernels = {}});
  }
  void TearDown() override {
    watcher->stop();
    link_.reset();
    connection_->close({}, Deadline::after(0));
    connection_.reset();
    StreamSideTest::TearDown();
  }
  // The message has `extra` bytes behind the layout.
  Status hear(uint32_t layout, uint64_t slab, size_t extra) {
    Bytes bytes;
    Writer writer(bytes);
    writer.u32(7);
    writer.u64(slab);
    writer.u32(layout);
    bytes.resize(bytes.size() + extra);
    return link_->on_lanes(bytes);
  }

  FakeLink fakes_;
  UniqueFd there_;
  std::shared_ptr<Connection> connection_;
  std::optional<StreamLink> link_;
};

TEST_F(StreamLinkTest, LanesOfItsOwnLayoutAreWhole) {
  EXPECT_TRUE(is_ok(hear(OH_LANE_LAYOUT, kernels::kLeastSlab, 8)));
  EXPECT_EQ(link_->why_no_kernels(), "");
  EXPECT_EQ(hear(OH_LANE_LAYOUT, kernels::kLeastSlab, 0).code(), OH_ERR_PROTOCOL);
  EXPECT_EQ(hear(OH_LANE_LAYOUT, kernels::kLeastSlab, 9).code(), OH_ERR_PROTOCOL);
  EXPECT_EQ(hear(OH_LANE_LAYOUT, kernels::kLeastSlab - 1, 8).code(), OH_ERR_PROTOCOL);
  EXPECT_EQ(link_->on_lanes(Bytes(8)).code(), OH_ERR_PROTOCOL);
}

// Of another version of onehop: kernels cannot use the link, which goes on.
TEST_F(StreamLinkTest, LanesOfAnotherLayoutRuleOutKernels) {
  for (const size_t extra : {0, 8, 24}) {
    EXPECT_TRUE(is_ok(hear(OH_LANE_LAYOUT + 1, 4096, extra))) << extra;
  }
  EXPECT_NE(link_->why_no_kernels().find("layout " + std::to_string(OH_LANE_LAYOUT + 1)),
            std::string::npos);
}

}  // namespace
}  // namespace unit::stream_link_test
