// SPDX-License-Identifier: Apache-2.0
//
// OneSided over fake paths, on a link with only a channel.
#include "one_sided/one_sided.h"

#include <deque>

#include "unit/path_side.h"

namespace one_sided_test {
namespace {

using namespace oh;
using unit::is_ok;

// The actions of the fake paths, in order.
std::deque<std::string> g_log;

// Moves an operation when the test lets it.
class FakePath : public Path {
 public:
  FakePath(const PathContext& context, const char* name) : Path(context), name_(name) {}

  Ready ready(const Operation&) override { return ready_; }
  bool push(Operation& operation) override {
    g_log.push_back(name_ + " push " + std::to_string(operation.blocks.size()));
    if (!room_) return false;
    pushed_.push_back(&operation);
    return true;
  }
  bool travels_apart(const Operation&) const override { return apart_; }
  bool cancel(Operation& operation, const Status& status, bool give_up) override {
    if (!give_up && stuck_) return false;
    std::erase(pushed_, &operation);
    return Path::cancel(operation, status, give_up);
  }
  void fail(Operation& operation, const Status&) override {
    std::erase(pushed_, &operation);
    g_log.push_back(name_ + " fail");
  }
  bool leave(const RegionRecord&) override { return left_; }

  void end(size_t index, Status status = {}) {
    Operation* operation = pushed_[index];
    pushed_.erase(pushed_.begin() + static_cast<ptrdiff_t>(index));
    events_.moved(*operation, std::move(status));
  }

  std::string name_;
  std::vector<Operation*> pushed_;
  Ready ready_ = Ready::kNow;
  bool room_ = true;
  bool apart_ = true;
  bool stuck_ = false;
  bool left_ = true;
};

// Copies immediately.
class FakeCopy final : public Path, public Immediate {
 public:
  using Path::Path;
  Immediate* immediate() override { return this; }
  Result<oh_path> copy(const Movement& movement) override {
    g_log.push_back("copy " + std::to_string(movement.bytes));
    return OH_PATH_SHM;
  }
};

Estimate costs(float latency, float speed) {
  Estimate estimate;
  estimate.cost = {.viable = true, .latency_us = latency, .bytes_per_us = speed};
  estimate.choice = {OH_PATH_SOCKET, Method::kStream, "a fake"};
  return estimate;
}
Estimate none(const LinkFacts&, const Ends&) { return {}; }
std::unique_ptr<Path> nothing(const PathContext&) { return nullptr; }

// A path with high bandwidth for large operations, and one with low latency.
const PathTable kFakes = {{
    {none, nothing},
    {none, nothing},
    {none, nothing},
    {none, nothing},
    {[](const LinkFacts&, const Ends&) { return costs(10, 100); },
     [](const PathContext& context) -> std::unique_ptr<Path> {
       return std::make_unique<FakePath>(context, "bulk");
     }},
    {[](const LinkFacts&, const Ends&) { return costs(1, 10); },
     [](const PathContext& context) -> std::unique_ptr<Path> {
       return std::make_unique<FakePath>(context, "quick");
     }},
}};

class OneSidedTest : public ::testing::Test {
 protected:
  OneSidedTest() {
    g_log.clear();
    link_.theirs.eager_credit = 4096;
    use_path_table(&kFakes);
    one_sided_.open(side_.transfers, side_.streams, RmaUse::kOff);
    one_sided_.open(LinkFacts{}, nullptr);
    use_path_table(nullptr);
    target_.length = 1 << 30;
    target_.version = 1;
  }

  FakePath& quick() { return static_cast<FakePath&>(*one_sided_.path(PathName::kFrames)); }
  FakePath& bulk() { return static_cast<FakePath&>(*one_sided_.path(PathName::kRma)); }

  // A put of `size` bytes, which are never read.
  Request& put(uint64_t size, const ByteView* notify = nullptr) {
    Request& request = requests_.emplace_back();
    request.kind = OpKind::kPut;
    request.size = size;
    const Block block{nullptr, 0, size};
    const MovePart part{target_, nullptr, size, {&block, 1}, 1, size};
    EXPECT_TRUE(
        is_ok(one_sided_.move(&request, {.put = true, .parts = {&part, 1}, .notify = notify})));
    return request;
  }
  // A put of three parts, to three regions, of 8 bytes each, which are never read.
  Request& put_parts(const ByteView* notify = nullptr) {
    Request& request = requests_.emplace_back();
    request.kind = OpKind::kPut;
    request.size = 24;
    auto list = std::make_shared<const std::vector<Block>>(3, Block{nullptr, 0, 8});
    std::vector<MovePart> parts;
    for (size_t i = 0; i < 3; ++i) {
      parts.push_back({target_, nullptr, 8, std::span(*list).subspan(i, 1), 1, 8});
    }
    EXPECT_TRUE(is_ok(
        one_sided_.move(&request, {.put = true, .parts = parts, .list = list, .notify = notify})));
    return request;
  }
  bool cancel(Request& request, bool give_up) {
    LinkGuard guard(link_);
    return one_sided_.cancel(&request, error(OH_ERR_TIMEOUT, "late"), give_up);
  }
  void signal(uint32_t slot) {
    LinkGuard guard(link_);
    one_sided_.signal(slot, 1);
  }
  void end(FakePath& path, size_t index, Status status = {}) {
    LinkGuard guard(link_);
    path.end(index, std::move(status));
    (void)one_sided_.progress();
  }
  // Returns the payload sizes of all frames.
  std::vector<size_t> sizes() {
    std::vector<size_t> all;
    for (const Frame& frame : side_.frames()) all.push_back(frame.payload_size);
    return all;
  }
  void progress() {
    LinkGuard guard(link_);
    (void)one_sided_.progress();
  }

  unit::PathSide side_;
  Link& link_ = side_.link;
  Notifications notifications_;
  OneSided one_sided_{link_, notifications_, side_.regions};
  RemoteTarget target_;
  std::deque<Request> requests_;
};

TEST_F(OneSidedTest, TheCheapestPathIsTaken) {
  put(8);
  put(1 << 20);
  EXPECT_EQ(quick().pushed_.size(), 1u);
  EXPECT_EQ(bulk().pushed_.size(), 1u);
  EXPECT_EQ(side_.fakes.owner.posts, 2);
}

TEST(CostTest, APathThatNeedsTheTargetComesLast) {
  const Cost slow{.viable = true, .latency_us = 1000};
  const Cost fast{.viable = true, .by_target = true, .latency_us = 1};
  EXPECT_TRUE(slow.is_less(fast, 8));
  EXPECT_FALSE(fast.is_less(slow, 8));
  const Cost wide{.viable = true, .latency_us = 2000, .bytes_per_us = 1000};
  EXPECT_TRUE(slow.is_less(wide, 8));
  EXPECT_TRUE(wide.is_less(slow, 1 << 20));
}

TEST_F(OneSidedTest, APathThatCannotBeUsedIsPassedOver) {
  bulk().ready_ = Path::Ready::kNever;
  put(1 << 20);
  EXPECT_EQ(quick().pushed_.size(), 1u);
}

// Operations behind one whose path is not ready yet wait with it.
TEST_F(OneSidedTest, APathThatIsReadyLaterHoldsUpTheQueue) {
  bulk().ready_ = Path::Ready::kLater;
  put(1 << 20);
  put(8);
  EXPECT_TRUE(quick().pushed_.empty());
  EXPECT_FALSE(one_sided_.idle());
  bulk().ready_ = Path::Ready::kNow;
  progress();
  EXPECT_EQ(bulk().pushed_.size(), 1u);
  EXPECT_EQ(quick().pushed_.size(), 1u);
}

TEST_F(OneSidedTest, ARequestEndsWhenItsBytesAreThere) {
  Request& request = put(8);
  EXPECT_FALSE(request.ended());
  end(quick(), 0);
  ASSERT_TRUE(request.ended());
  EXPECT_TRUE(is_ok(request.status));
  EXPECT_EQ(request.nbytes, 8u);
  EXPECT_EQ(request.path, OH_PATH_SOCKET);
  EXPECT_TRUE(one_sided_.idle());
}

// A signal follows all puts whose bytes do not travel as frames.
TEST_F(OneSidedTest, SignalsWaitForPutsThatTravelApart) {
  put(8);
  put(8);
  signal(3);
  end(quick(), 1);
  EXPECT_TRUE(side_.frames().empty());
  end(quick(), 0);
  EXPECT_EQ(side_.fakes.channel->types(), std::vector{FrameType::kSignal});
}

TEST_F(OneSidedTest, SignalsFollowFramesAtOnce) {
  quick().apart_ = false;
  put(8);
  signal(3);
  EXPECT_EQ(side_.fakes.channel->types(), std::vector{FrameType::kSignal});
}

// Notifications keep the order of their puts, whichever ends first.
TEST_F(OneSidedTest, NotificationsKeepTheOrderOfTheirPuts) {
  const Bytes one(1, 1);
  const ByteView notify(one);
  Request& first = put(8, &notify);
  Request& second = put(8, &notify);
  end(quick(), 1);
  EXPECT_TRUE(side_.frames().empty());
  EXPECT_FALSE(second.ended());
  end(quick(), 0);
  EXPECT_EQ(side_.frames().size(), 2u);
  EXPECT_TRUE(first.ended() && second.ended());
}

// So do notifications without a put, and puts whose bytes travel as frames.
TEST_F(OneSidedTest, ANotificationFollowsThoseOfEarlierPuts) {
  quick().apart_ = false;
  const Bytes one(1, 1), two(2, 2);
  const ByteView notify(one);
  put(8, &notify);
  Request& behind = requests_.emplace_back();
  behind.kind = OpKind::kNotify;
  {
    LinkGuard guard(link_);
    one_sided_.post_notification(&behind, two);
  }
  EXPECT_TRUE(side_.frames().empty());
  end(quick(), 0);
  EXPECT_EQ(sizes(), (std::vector<size_t>{1, 2}));
  EXPECT_TRUE(behind.ended());
  EXPECT_TRUE(one_sided_.idle());
}

// A put that fails sends no notification, and does not block later ones.
TEST_F(OneSidedTest, APutThatFailsSendsNoNotification) {
  const Bytes one(1, 1);
  const ByteView notify(one);
  Request& request = put(8, &notify);
  signal(0);
  end(quick(), 0, error(OH_ERR_RETIRED, "gone"));
  EXPECT_EQ(request.status.code(), OH_ERR_RETIRED);
  EXPECT_EQ(side_.fakes.channel->types(), std::vector{FrameType::kSignal});
}

TEST_F(OneSidedTest, CancellingAsksThePath) {
  Request& queued = put(8);
  quick().stuck_ = true;
  const Status late = error(OH_ERR_TIMEOUT, "late");
  LinkGuard guard(link_);
  EXPECT_FALSE(one_sided_.cancel(&queued, late, /*give_up=*/false));
  EXPECT_TRUE(one_sided_.cancel(&queued, late, /*give_up=*/true));
  EXPECT_EQ(queued.status.code(), OH_ERR_TIMEOUT);
  EXPECT_TRUE(one_sided_.idle());
}

// An operation that no path has begun ends without a path.
TEST_F(OneSidedTest, CancellingWhatIsQueuedAsksNobody) {
  quick().room_ = false;
  put(8);
  Request& behind = put(8);
  LinkGuard guard(link_);
  EXPECT_TRUE(one_sided_.cancel(&behind, error(OH_ERR_TIMEOUT, "late"), /*give_up=*/false));
  EXPECT_EQ(behind.status.code(), OH_ERR_TIMEOUT);
}

TEST_F(OneSidedTest, TheEndOfTheLinkEndsEverything) {
  Request& begun = put(8);
  quick().room_ = false;
  Request& queued = put(8);
  {
    LinkGuard guard(link_);
    one_sided_.fail_all(error(OH_ERR_PEER_LOST, "gone"));
  }
  EXPECT_EQ(begun.status.code(), OH_ERR_PEER_LOST);
  EXPECT_EQ(queued.status.code(), OH_ERR_PEER_LOST);
  EXPECT_TRUE(one_sided_.idle());
  EXPECT_EQ(std::count(g_log.begin(), g_log.end(), "quick fail"), 2);
}

// A batch over several regions: its parts travel at once, and one notification follows all of them.
TEST_F(OneSidedTest, ABatchEndsAndNotifiesOnceAllItsPartsHave) {
  const Bytes one(1, 1);
  const ByteView notify(one);
  Request& request = put_parts(&notify);
  ASSERT_EQ(quick().pushed_.size(), 3u);
  Request& behind = put(8, &notify);
  end(quick(), 3);
  EXPECT_TRUE(side_.frames().empty());  // its notification follows that of the batch
  end(quick(), 1);
  end(quick(), 1);
  EXPECT_TRUE(side_.frames().empty());
  EXPECT_FALSE(request.ended());
  end(quick(), 0);
  ASSERT_TRUE(request.ended());
  EXPECT_TRUE(behind.ended());
  EXPECT_TRUE(is_ok(request.status));
  EXPECT_EQ(request.nbytes, 24u);
  EXPECT_EQ(side_.frames().size(), 2u);
  EXPECT_TRUE(one_sided_.idle());
}

TEST_F(OneSidedTest, ABatchThatFailsInPartFailsOnceAllItsPartsHaveEnded) {
  const Bytes one(1, 1);
  const ByteView notify(one);
  Request& request = put_parts(&notify);
  end(quick(), 0, error(OH_ERR_RETIRED, "gone"));
  EXPECT_FALSE(request.ended());
  end(quick(), 0);
  end(quick(), 0);
  ASSERT_TRUE(request.ended());
  EXPECT_EQ(request.status.code(), OH_ERR_RETIRED);
  EXPECT_TRUE(side_.frames().empty());
}

TEST_F(OneSidedTest, CancellingABatchCancelsAllItsParts) {
  Request& begun = put_parts();
  quick().stuck_ = true;
  EXPECT_FALSE(cancel(begun, /*give_up=*/false));
  EXPECT_FALSE(begun.ended());
  end(quick(), 0);
  EXPECT_TRUE(cancel(begun, /*give_up=*/true));
  EXPECT_EQ(begun.status.code(), OH_ERR_TIMEOUT);
  quick().stuck_ = quick().room_ = false;
  Request& queued = put_parts();
  EXPECT_TRUE(cancel(queued, /*give_up=*/false));
  EXPECT_EQ(queued.status.code(), OH_ERR_TIMEOUT);
  EXPECT_TRUE(one_sided_.idle());
}

TEST_F(OneSidedTest, TheEndOfTheLinkEndsABatchOnce) {
  Request& begun = put_parts();
  quick().room_ = false;
  Request& queued = put_parts();
  {
    LinkGuard guard(link_);
    one_sided_.fail_all(error(OH_ERR_PEER_LOST, "gone"));
  }
  EXPECT_EQ(begun.status.code(), OH_ERR_PEER_LOST);
  EXPECT_EQ(queued.status.code(), OH_ERR_PEER_LOST);
  EXPECT_TRUE(one_sided_.idle());
}

// The rest of a notification that was sent in part follows before everything else, even if its
// request was abandoned.
TEST_F(OneSidedTest, ANotificationThatHasBegunIsSentWhole) {
  quick().apart_ = false;
  const Bytes long_one(10000, 1);
  const Bytes one(1, 1);
  const ByteView notify(one);
  Request& request = requests_.emplace_back();
  request.kind = OpKind::kNotify;
  {
    LinkGuard guard(link_);
    one_sided_.post_notification(&request, long_one);
  }
  Request& first = put(8, &notify);
  EXPECT_EQ(sizes().size(), 2u);  // limited by the credit
  EXPECT_TRUE(one_sided_.has_begun(request));
  EXPECT_TRUE(cancel(request, /*give_up=*/false));
  EXPECT_EQ(request.status.code(), OH_ERR_TIMEOUT);
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(first.ended());
    Frame collected;
    collected.type = FrameType::kAck;
    collected.length = 2048;
    LinkGuard guard(link_);
    EXPECT_TRUE(is_ok(one_sided_.on_frame(collected)));
    (void)one_sided_.progress();
  }
  end(quick(), 0);
  EXPECT_TRUE(first.ended());
  EXPECT_EQ(sizes(), (std::vector<size_t>{2048, 2048, 2048, 2048, 1808, 1}));
  EXPECT_TRUE(one_sided_.idle());
}

TEST_F(OneSidedTest, PartsOfANotificationThatDoNotFitAreRefused) {
  link_.mine.eager_credit = 1 << 20;
  const Bytes bytes(5000, 7);
  auto part = [&](uint64_t at, size_t size, uint64_t whole) {
    Frame frame;
    frame.type = FrameType::kNotify;
    frame.address = at;
    frame.length = whole;
    frame.payload = bytes.data();
    frame.payload_size = size;
    LinkGuard guard(link_);
    return one_sided_.on_frame(frame).code();
  };
  EXPECT_EQ(part(1, 8, 100), OH_ERR_PROTOCOL);    // no first part
  EXPECT_EQ(part(0, 101, 100), OH_ERR_PROTOCOL);  // more than its size
  EXPECT_EQ(part(0, 8, UINT64_MAX), OH_ERR_PROTOCOL);
  EXPECT_EQ(part(0, 2048, 5000), OH_OK);
  EXPECT_TRUE(notifications_.empty());
  EXPECT_EQ(part(2048, 2048, 4999), OH_ERR_PROTOCOL);  // another size
  EXPECT_EQ(part(2047, 2048, 5000), OH_ERR_PROTOCOL);
  EXPECT_EQ(part(0, 8, 5000), OH_ERR_PROTOCOL);  // another one in between
  EXPECT_EQ(part(2048, 2048, 5000), OH_OK);
  EXPECT_EQ(part(4096, 904, 5000), OH_OK);
  Notification notification;
  size_t size = 0;
  ASSERT_TRUE(*notifications_.take(5000, &notification, &size));
  EXPECT_EQ(notification.bytes, bytes);
}

TEST_F(OneSidedTest, ALinkThatIsNotOpenTakesNothing) {
  {
    LinkGuard guard(link_);
    (void)link_.set_closed();
  }
  Request request;
  request.kind = OpKind::kPut;
  const Block block{nullptr, 0, 8};
  const MovePart part{target_, nullptr, 8, {&block, 1}, 1, 8};
  EXPECT_EQ(one_sided_.move(&request, {.put = true, .parts = {&part, 1}}).code(), OH_ERR_LINK);
  EXPECT_TRUE(g_log.empty());
}

// A region is unused once no path uses it.
TEST_F(OneSidedTest, ARegionIsLeftWhenAllPathsHaveLeftIt) {
  const RegionRecord region;
  LinkGuard guard(link_);
  EXPECT_TRUE(one_sided_.leave(region));
  bulk().left_ = false;
  EXPECT_FALSE(one_sided_.leave(region));
}

// A frame for a path that the link does not have breaks the protocol.
TEST_F(OneSidedTest, FramesForOtherPathsAreRefused) {
  LinkGuard guard(link_);
  for (const uint8_t flags : {kBySlot, kStaged}) {
    Frame frame;
    frame.type = FrameType::kPut;
    frame.flags = flags;
    EXPECT_EQ(one_sided_.on_frame(frame).code(), OH_ERR_PROTOCOL);
  }
}

}  // namespace
}  // namespace one_sided_test
