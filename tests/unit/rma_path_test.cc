// SPDX-License-Identifier: Apache-2.0
//
// RmaPath over UCX, both ends of a link in this process: bytes, the life of a region's key, and the
// remains of a cancelled operation.
#include "path/rma/rma_path.h"

#include "unit/path_side.h"

namespace unit::rma_path_test {
namespace {

using namespace oh;

class NoEvents final : public UcxListener {
 public:
  void on_arrival() override {}
  void on_broken() override {}
  void on_room() override {}
  void count_polled(int) override {}
};

struct Side : PathSide {
  explicit Side(const std::shared_ptr<UcxWorker>& worker) {
    auto made = std::make_unique<UcxChannel>(worker, /*peer_credit=*/1 << 20, /*key=*/77, 0);
    link.ucx = made.get();
    link.outbox.attach(made.get());
    link.channel = std::move(made);
    link.path = OH_PATH_UCX;
  }
  // Handles arrived frames, and makes progress.
  Status work() {
    (void)link.ucx->worker().progress();
    while (link.ucx->ready()) {
      Frame frame;
      OH_RETURN_IF_ERROR(link.ucx->peek(&frame));
      const Status handled = path->on_frame(frame);
      link.ucx->pop();
      OH_RETURN_IF_ERROR(handled);
    }
    if (!grants) return {};
    if (std::shared_ptr<RegionRecord> region = path->keys().next_to_map()) {
      path->keys().mapped(region, /*valid=*/true,
                          map_region(*region, link.ucx->worker().context()));
    }
    path->begin_turn();
    (void)path->progress();
    return {};
  }

  std::optional<RmaPath> path;
  bool grants = true;  // whether it grants keys and makes progress
};

class RmaPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    Result<const UcxContext*> context = UcxContext::get("", /*rma=*/true);
    if (!context.ok()) GTEST_SKIP() << "no UCX here: " << context.status().text();
    for (std::optional<Side>* side : {&initiator_, &target_}) {
      Result<std::shared_ptr<UcxWorker>> worker =
          UcxWorker::create(**context, {}, std::make_shared<NoEvents>());
      ASSERT_TRUE(is_ok(worker));
      side->emplace(*worker);
    }
    Result<UcxChannel::Remote> one = initiator_->link.ucx->own(/*network=*/false);
    Result<UcxChannel::Remote> other = target_->link.ucx->own(/*network=*/false);
    ASSERT_TRUE(is_ok(one) && is_ok(other));
    ASSERT_TRUE(is_ok(initiator_->link.ucx->connect(*other, 256)));
    ASSERT_TRUE(is_ok(target_->link.ucx->connect(*one, 256)));
    for (Side* side : {&*initiator_, &*target_}) {
      side->path.emplace(side->context(RmaUse::kOn));
      ASSERT_TRUE(side->path->keys().is_open());
    }
    region_ = *target_->regions.add(remote_.data(), remote_.size(), nullptr);
  }
  void TearDown() override {
    if (!initiator_) return;
    // As at the end of a link.
    for (Side* side : {&*initiator_, &*target_}) {
      side->link.ucx->disconnect();
      side->path->fail_all();
      side->path.reset();
    }
  }

  // Progresses both sides until the condition holds.
  template <typename Condition>
  bool comes(Condition condition) {
    return eventually([&] {
      EXPECT_TRUE(is_ok(initiator_->work()));
      EXPECT_TRUE(is_ok(target_->work()));
      return condition();
    });
  }
  RemoteKeys& keys() { return initiator_->path->keys(); }
  void attach() { keys().attach(region_->index, region_->version); }
  RemoteKey::State key_state() { return keys().find(region_->index, region_->version)->state; }
  void get_key() {
    attach();
    ASSERT_TRUE(comes([&] { return key_state() == RemoteKey::State::kHeld; }));
  }
  void prepare(OpKind kind, uint64_t size = 200'000) {
    unit::prepare(operation_, kind, *region_,
                  {{local_.data(), 100, 300}, {local_.data() + 400, 1000, size}});
    EXPECT_EQ(initiator_->path->ready(operation_), Path::Ready::kNow);
    initiator_->path->begin(operation_);
  }
  // Pushes as far as there is room, until UCX has all blocks.
  bool push_all() {
    return comes([&] { return initiator_->path->push(operation_); });
  }
  bool ends() {
    return comes([&] { return !initiator_->ends.empty(); });
  }

  std::optional<Side> initiator_;
  std::optional<Side> target_;
  Bytes remote_ = Random(1).bytes(8 << 20);
  Bytes local_ = Random(2).bytes(8 << 20);
  std::shared_ptr<RegionRecord> region_;
  Operation operation_;
};

TEST_F(RmaPathTest, BlocksAreThereWhenTheOperationEnds) {
  get_key();
  for (const OpKind kind : {OpKind::kPut, OpKind::kGet}) {
    prepare(kind);
    const Bytes untouched(remote_.begin() + 400, remote_.begin() + 1000);
    ASSERT_TRUE(push_all());
    ASSERT_TRUE(ends());
    EXPECT_TRUE(initiator_->ended_with(OH_OK));
    EXPECT_TRUE(are_equal(operation_));
    EXPECT_TRUE(std::equal(untouched.begin(), untouched.end(), remote_.begin() + 400));
    EXPECT_TRUE(initiator_->path->idle());
    initiator_->ends.clear();
    std::ranges::copy(Random(3).bytes(remote_.size()), remote_.begin());
  }
}

// A turn is bounded: the rest of the operation follows in later turns.
TEST_F(RmaPathTest, ALargeOperationTakesSeveralTurns) {
  get_key();
  prepare(OpKind::kPut, /*size=*/7 << 20);
  initiator_->path->begin_turn();
  EXPECT_FALSE(initiator_->path->push(operation_));
  EXPECT_TRUE(operation_.begun());
  ASSERT_TRUE(push_all());
  ASSERT_TRUE(ends());
  EXPECT_TRUE(are_equal(operation_));
}

TEST_F(RmaPathTest, AnOperationWaitsForTheKeyThatWasAskedFor) {
  unit::prepare(operation_, OpKind::kPut, *region_, {{local_.data(), 0, 8}});
  EXPECT_EQ(initiator_->path->ready(operation_), Path::Ready::kNever) << "not attached";
  target_->grants = false;
  attach();
  EXPECT_EQ(initiator_->path->ready(operation_), Path::Ready::kLater);
  target_->grants = true;
  EXPECT_TRUE(comes([&] { return initiator_->path->ready(operation_) == Path::Ready::kNow; }));
}

TEST_F(RmaPathTest, ARegionThatIsGoneHasNoKey) {
  target_->regions.retire(*region_);
  attach();
  EXPECT_TRUE(comes([&] { return key_state() == RemoteKey::State::kRefused; }));
  unit::prepare(operation_, OpKind::kPut, *region_, {{local_.data(), 0, 8}});
  EXPECT_EQ(initiator_->path->ready(operation_), Path::Ready::kNever);
}

// The owner unmaps a region once the peer has returned its key.
TEST_F(RmaPathTest, ADetachedKeyIsGivenBack) {
  get_key();
  EXPECT_FALSE(target_->path->leave(*region_));
  keys().detach(region_->version);
  EXPECT_TRUE(comes([&] { return target_->path->leave(*region_); }));
  EXPECT_EQ(keys().find(region_->index, region_->version), nullptr);
}

// Operations in UCX complete as usual; the key is returned after them.
TEST_F(RmaPathTest, RetiringARegionWaitsForWhatIsUnderWay) {
  get_key();
  prepare(OpKind::kPut);
  ASSERT_TRUE(push_all());
  target_->regions.retire(*region_);
  target_->path->retire(*region_);
  ASSERT_TRUE(ends());
  EXPECT_TRUE(initiator_->ended_with(OH_OK));
  EXPECT_TRUE(are_equal(operation_));
  EXPECT_TRUE(comes([&] { return target_->path->leave(*region_); }));
}

TEST_F(RmaPathTest, RetiringARegionStopsWhatIsBeingPushed) {
  get_key();
  prepare(OpKind::kPut, /*size=*/7 << 20);
  initiator_->path->begin_turn();
  ASSERT_FALSE(initiator_->path->push(operation_));
  target_->regions.retire(*region_);
  target_->path->retire(*region_);
  ASSERT_TRUE(comes([&] { return !operation_.failure.ok(); }));
  EXPECT_TRUE(initiator_->path->push(operation_)) << "nothing more of it is pushed";
  ASSERT_TRUE(ends());
  EXPECT_TRUE(initiator_->ended_with(OH_ERR_RETIRED));
}

// The put's request ends at once; its signals wait for the flush.
TEST_F(RmaPathTest, ACancelledPutStaysUntilItIsFlushed) {
  get_key();
  prepare(OpKind::kPut);
  Request request;
  request.kind = OpKind::kPut;
  request.size = 200'300;
  operation_.request = &request;
  ASSERT_TRUE(push_all());
  const Status late = error(OH_ERR_TIMEOUT, "late");
  ASSERT_TRUE(initiator_->path->cancel(operation_, late, /*give_up=*/true));
  EXPECT_TRUE(request.ended());
  EXPECT_TRUE(initiator_->ends.empty());
  ASSERT_TRUE(ends());
  EXPECT_EQ(initiator_->ends.front().code(), OH_ERR_TIMEOUT);
  EXPECT_TRUE(are_equal(operation_)) << "what UCX had arrives";
  EXPECT_TRUE(comes([&] { return initiator_->link.ucx->worker().holds() == false; }));
}

TEST_F(RmaPathTest, AKeyThatWasNotAskedForBreaksTheProtocol) {
  Frame frame;
  frame.type = FrameType::kKey;
  frame.region = region_->index;
  frame.tag = region_->version;
  EXPECT_TRUE(fails_with(initiator_->path->on_frame(frame), OH_ERR_PROTOCOL));
  frame.type = FrameType::kKeyWanted;
  EXPECT_TRUE(is_ok(target_->path->on_frame(frame)));
  EXPECT_TRUE(fails_with(target_->path->on_frame(frame), OH_ERR_PROTOCOL)) << "twice";
}

}  // namespace
}  // namespace unit::rma_path_test
