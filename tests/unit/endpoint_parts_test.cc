// SPDX-License-Identifier: Apache-2.0
//
// Parts of an endpoint that need one around them: EndpointMemory and IncomingLinks, with two
// endpoints of this process.
#include "unit/traffic.h"

namespace endpoint_parts_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

Deadline in_time() { return Deadline::after(20 * kSecond); }

class EndpointPartsTest : public ::testing::Test {
 protected:
  EndpointPartsTest() {
    for (std::shared_ptr<Endpoint>* endpoint : {&one_, &other_}) {
      *endpoint = *Endpoint::create(unit::config_with({{"ONEHOP_INTERFACE", "127.0.0.1"}}), {});
    }
    to_other_ = *one_->connect(other_->own_address().encode(), {}, in_time());
    to_one_ = *other_->incoming().accept(in_time());
  }
  ~EndpointPartsTest() override {
    one_->close();
    other_->close();
  }
  // Writes to a region of the other endpoint, from its start.
  Status put(const RemoteTarget& target, Bytes bytes) {
    Request request;
    unit::prepare(&request, OpKind::kPut, *one_, bytes.data(), bytes.size(), 0);
    const Block block{bytes.data(), 0, bytes.size()};
    const MovePart part{target, bytes.data(), bytes.size(), {&block, 1}, 1, bytes.size()};
    OH_RETURN_IF_ERROR(
        to_other_->operations().one_sided().move(&request, {.put = true, .parts = {&part, 1}}));
    return one_->requests().wait(&request, in_time(), &*to_other_);
  }

  std::shared_ptr<Endpoint> one_;
  std::shared_ptr<Endpoint> other_;
  std::shared_ptr<Peer> to_other_;
  std::shared_ptr<Peer> to_one_;
  Bytes memory_ = Bytes(1000);
};

// ---- EndpointMemory -----------------------------------------------------------------------------

TEST_F(EndpointPartsTest, ARegionIsReachedByItsDescriptor) {
  const std::shared_ptr<RegionRecord> region =
      *other_->memory().register_region(memory_.data(), memory_.size());
  Result<RemoteTarget> target =
      one_->memory().attach(*to_other_, other_->memory().export_region(*region), in_time());
  ASSERT_TRUE(is_ok(target));
  EXPECT_EQ(target->base, reinterpret_cast<uint64_t>(memory_.data()));
  EXPECT_EQ(target->length, memory_.size());
  EXPECT_FALSE(target->imported) << "within the process its address is enough";
  const Bytes bytes = unit::Random(1).bytes(100);
  EXPECT_TRUE(is_ok(put(*target, bytes)));
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), memory_.begin()));
  EndpointMemory::detach(*target);
  EXPECT_TRUE(is_ok(other_->memory().deregister(*region, in_time())));
}

TEST_F(EndpointPartsTest, NothingIsWrittenIntoARegionThatIsGone) {
  const std::shared_ptr<RegionRecord> region =
      *other_->memory().register_region(memory_.data(), memory_.size());
  const RemoteTarget target =
      *one_->memory().attach(*to_other_, other_->memory().export_region(*region), in_time());
  EXPECT_TRUE(is_ok(other_->memory().deregister(*region, in_time())));
  EXPECT_TRUE(fails_with(put(target, Bytes(100, 7)), OH_ERR_RETIRED));
  EXPECT_EQ(memory_, Bytes(1000));
  // Its index is reused with another version.
  const std::shared_ptr<RegionRecord> next =
      *other_->memory().register_region(memory_.data(), memory_.size());
  EXPECT_EQ(next->index, region->index);
  EXPECT_TRUE(fails_with(put(target, Bytes(100, 7)), OH_ERR_RETIRED));
}

TEST_F(EndpointPartsTest, ADescriptorIsForThePeerThatMadeIt) {
  const std::shared_ptr<RegionRecord> region =
      *other_->memory().register_region(memory_.data(), memory_.size());
  const Bytes descriptor = other_->memory().export_region(*region);
  EXPECT_TRUE(fails_with(other_->memory().attach(*to_one_, descriptor, in_time()), OH_ERR_INVALID,
                         "another endpoint"));
  Bytes cut = descriptor;
  cut.pop_back();
  EXPECT_FALSE(one_->memory().attach(*to_other_, cut, in_time()).ok());
  Bytes longer = descriptor;
  longer.resize(1024);
  EXPECT_TRUE(fails_with(one_->memory().attach(*to_other_, longer, in_time()), OH_ERR_INVALID,
                         "more behind the region descriptor"));
}

TEST_F(EndpointPartsTest, MemoryThatIsNotMappedIsNoRegion) {
  Result<Mapping> mapping = Mapping::anonymous(4096);
  ASSERT_TRUE(is_ok(mapping));
  void* base = mapping->data();
  EXPECT_TRUE(is_ok(one_->memory().register_region(base, 4096)));
  mapping->reset();
  const char* text = "not all mapped";
  EXPECT_TRUE(fails_with(one_->memory().register_region(base, 4096), OH_ERR_FAULT, text));
  // It ends beyond the mapped memory, or beyond the address space.
  EXPECT_TRUE(fails_with(one_->memory().register_region(memory_.data(), uint64_t{1} << 46),
                         OH_ERR_FAULT, text));
  EXPECT_TRUE(
      fails_with(one_->memory().register_region(memory_.data(), UINT64_MAX), OH_ERR_FAULT, text));
}

TEST_F(EndpointPartsTest, AClosedEndpointHasNoRegions) {
  other_->close();
  EXPECT_TRUE(fails_with(other_->memory().register_region(memory_.data(), 1), OH_ERR_CLOSED));
}

// ---- IncomingLinks ------------------------------------------------------------------------------

class FakeGate final : public LinkGate {
 public:
  Status admit(const LinkPurpose&) override { return verdict; }
  void linked(const LinkPurpose& purpose, std::shared_ptr<Peer> peer) override {
    rank = purpose.from_rank;
    linked_peer = std::move(peer);
  }
  void abandoned(const LinkPurpose&) override { ++lost; }

  Status verdict;
  uint32_t rank = 0;
  std::shared_ptr<Peer> linked_peer;
  int lost = 0;
};

class IncomingLinksTest : public EndpointPartsTest {
 protected:
  static LinkPurpose of_rank(uint32_t rank) {
    LinkPurpose purpose;
    purpose.communicator[0] = 1;
    purpose.from_rank = rank;
    return purpose;
  }

  IncomingLinks links_{*one_};
  std::shared_ptr<FakeGate> gate_ = std::make_shared<FakeGate>();
};

TEST_F(IncomingLinksTest, LinksAreTakenInTheirOrder) {
  EXPECT_TRUE(is_ok(links_.admit({})));
  EXPECT_FALSE(*links_.has_peer());
  const uint32_t rings = one_->doorbell().rings.load();
  links_.deliver({}, to_other_);
  links_.deliver({}, to_one_);
  EXPECT_EQ(one_->doorbell().rings.load(), rings + 2) << "accept() may be asleep";
  EXPECT_TRUE(*links_.has_peer());
  EXPECT_EQ(*links_.accept(in_time()), to_other_);
  EXPECT_EQ(*links_.accept(in_time()), to_one_);
  EXPECT_FALSE(*links_.has_peer());
}

TEST_F(IncomingLinksTest, AClosedEndpointKeepsNone) {
  const long before = to_other_.use_count();
  links_.deliver({}, to_other_);
  links_.clear();
  EXPECT_EQ(to_other_.use_count(), before);
  EXPECT_FALSE(*links_.has_peer());
}

TEST_F(IncomingLinksTest, ACommunicatorDecidesAboutItsLinks) {
  links_.set_gate(gate_);
  gate_->verdict = error(OH_AGAIN, "ours wins");
  EXPECT_EQ(links_.admit(of_rank(3)).code(), OH_AGAIN);
  EXPECT_TRUE(is_ok(links_.admit({}))) << "not for it";
  links_.deliver(of_rank(3), to_other_);
  EXPECT_EQ(gate_->rank, 3u);
  EXPECT_EQ(gate_->linked_peer, to_other_);
  EXPECT_FALSE(*links_.has_peer());
  links_.abandoned(of_rank(3));
  links_.abandoned({});
  EXPECT_EQ(gate_->lost, 1);
}

TEST_F(IncomingLinksTest, ACommunicatorThatIsClosedTakesNone) {
  links_.set_gate(gate_);
  gate_.reset();
  EXPECT_TRUE(fails_with(links_.admit(of_rank(3)), OH_ERR_REFUSED, "closed"));
  const long before = to_other_.use_count();
  links_.deliver(of_rank(3), to_other_);
  EXPECT_EQ(to_other_.use_count(), before);
}

}  // namespace
}  // namespace endpoint_parts_test
