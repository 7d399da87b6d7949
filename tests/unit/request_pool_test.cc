// SPDX-License-Identifier: Apache-2.0
#include "link/request_pool.h"

#include <vector>

#include "unit/support.h"

namespace request_pool_test {
namespace {

using namespace oh;

struct Owner : std::enable_shared_from_this<Owner> {
  RequestPool requests;
};

// Sets the fields that a short message leaves in its request, and more.
void fill_core(Request* request) {
  request->kind = OpKind::kRecv;
  request->phase = Phase::kEnded;
  request->any_source = request->attended = request->on_device = true;
  request->in_place = request->eager = true;
  request->data = reinterpret_cast<uint8_t*>(request);
  request->size = request->tag = request->op = 1;
  request->order = {1, 1};
  request->transfer = reinterpret_cast<Transfer*>(request);
  request->peer = reinterpret_cast<Peer*>(request);
  request->endpoint = reinterpret_cast<Endpoint*>(request);
  request->number = 1;
  request->path = OH_PATH_INLINE;
  request->nbytes = request->message_tag = request->peer_id = 1;
  request->peer_rank = 1;
  request->waits_since = 1;
  for (auto* word : {&request->done, &request->armed, &request->detached}) word->store(1);
}

void expect_new(const Request& request) {
  const Request other;
  EXPECT_EQ(request.kind, other.kind);
  EXPECT_EQ(request.phase, other.phase);
  EXPECT_FALSE(request.any_source || request.attended || request.on_device);
  EXPECT_FALSE(request.in_place || request.eager || request.plain);
  EXPECT_EQ(request.data, nullptr);
  EXPECT_EQ(request.size, 0u);
  EXPECT_EQ(request.tag, 0u);
  EXPECT_EQ(request.op, 0u);
  EXPECT_EQ(request.order.era, 0u);
  EXPECT_EQ(request.order.serial, 0u);
  EXPECT_EQ(request.transfer, nullptr);
  EXPECT_EQ(request.peer, nullptr);
  EXPECT_EQ(request.endpoint, nullptr);
  EXPECT_EQ(request.number, 0u);
  EXPECT_EQ(request.path, OH_PATH_NONE);
  EXPECT_TRUE(request.status.ok());
  EXPECT_EQ(request.nbytes, 0u);
  EXPECT_EQ(request.message_tag, 0u);
  EXPECT_EQ(request.peer_id, 0u);
  EXPECT_EQ(request.peer_rank, -1);
  EXPECT_EQ(request.waits_since, 0);
  EXPECT_EQ(request.done.load() + request.armed.load() + request.detached.load(), 0u);
  EXPECT_FALSE(static_cast<const ListNode<InPosted>&>(request).linked());
  EXPECT_FALSE(static_cast<const ListNode<InQueue>&>(request).linked());
  EXPECT_EQ(request.granted, 0u);
  EXPECT_TRUE(request.doubts.empty());
  EXPECT_EQ(request.device.bounce, nullptr);
}

TEST(RequestPoolTest, HoldsItsOwnerWhileAHandleIsOut) {
  auto owner = std::make_shared<Owner>();
  std::weak_ptr<Owner> alive = owner;
  Request* first = owner->requests.acquire(*owner);
  Request* second = owner->requests.acquire(*owner);
  RequestPool& requests = owner->requests;
  owner.reset();
  EXPECT_EQ(requests.release(first), nullptr);
  EXPECT_FALSE(alive.expired());
  std::shared_ptr<void> last = requests.release(second);
  EXPECT_NE(last, nullptr);
  EXPECT_FALSE(alive.expired());
  last.reset();
  EXPECT_TRUE(alive.expired());
}

TEST(RequestPoolTest, ARequestOutlivesItsHandle) {
  auto owner = std::make_shared<Owner>();
  Request* request = owner->requests.acquire(*owner);
  EXPECT_EQ(owner->requests.release_handle(), owner);
  // It is not handed out again before it has ended.
  std::vector<Request*> others;
  for (int i = 0; i < 200; ++i) others.push_back(owner->requests.acquire(*owner));
  EXPECT_THAT(others, ::testing::Not(::testing::Contains(request)));
  owner->requests.recycle(request);
  EXPECT_EQ(owner->requests.acquire(*owner), request);
  others.push_back(request);
  for (Request* one : others) (void)owner->requests.release(one);
  EXPECT_EQ(owner.use_count(), 1);
}

TEST(RequestPoolTest, HandsOutRequestsAsNew) {
  auto owner = std::make_shared<Owner>();
  Request* held = owner->requests.acquire(*owner);
  for (bool plain : {true, false}) {
    Request* request = owner->requests.acquire(*owner);
    expect_new(*request);
    fill_core(request);
    request->plain = plain;
    if (!plain) {
      request->status = error(OH_ERR_TIMEOUT, "late");
      request->granted = 1;
      request->doubts.push_back({});
      request->device.bounce.reset(new uint8_t[1]);
    }
    EXPECT_EQ(owner->requests.release(request), nullptr);
    Request* again = owner->requests.acquire(*owner);
    ASSERT_EQ(again, request);
    expect_new(*again);
    EXPECT_EQ(owner->requests.release(again), nullptr);
  }
  EXPECT_EQ(owner->requests.release(held), owner);
}

}  // namespace
}  // namespace request_pool_test
