// SPDX-License-Identifier: Apache-2.0
//
// A Proxy over a fake port: the test submits tickets as kernels do and completes the requests.
#pragma once

#include <cstddef>
#include <cstring>
#include <string>

#include "onehop/detail/host_atomics.h"
#include "stream/proxy/proxy.h"
#include "unit/fake_gpu.h"

namespace proxy_test {

using namespace oh;
using kernels::kMoveQueue;
using kernels::kSignalQueue;
using kernels::kWaitQueues;
using unit::fails_with;
using unit::is_ok;

inline constexpr uint32_t kSend = 0;  // queues of lane 0
inline constexpr uint32_t kRecv = OH_LANES;

class FakePort final : public ProxyPort {
 public:
  const std::string& name() const override { return name_; }
  Status usable() override { return usable_; }
  void wake() override { ++woken_; }
  Status post(Request& request, bool) override {
    if (!room_) return Status(OH_AGAIN, "no room");
    // The receive that is always posted for the other proxy's messages belongs to no ticket.
    const bool between_proxies = request.kind == OpKind::kRecv && request.size == 64;
    (between_proxies ? incoming_ : posted_).push_back(&request);
    return {};
  }
  Status move(Request& request, const RemoteTarget& target, const Block& block) override {
    moves_.push_back({&request, target.index, block.remote_offset});
    return {};
  }
  Result<uint32_t> begin_atomic(const RemoteTarget& target, uint64_t offset,
                                const AtomicOp& op) override {
    atomics_.push_back({target.index, offset, op});
    return static_cast<uint32_t>(atomics_.size());
  }
  std::optional<Result<uint64_t>> take_atomic(uint32_t name) override {
    return std::exchange(atomics_[name - 1].answer, std::nullopt);
  }
  void abandon_atomic(uint32_t name) override { atomics_[name - 1].abandoned = true; }
  bool try_end(Request& request, const Status& why) override {
    if (stuck_) return false;
    if (!request.ended()) end(request, why);
    return true;
  }
  bool released(const Request&) override { return released_; }
  void discard(uint64_t tag) override { discarded_.push_back(tag); }
  void accuse(const Status& status) override { accused_ = status; }

  void end(Request& request, const Status& status, uint64_t bytes = 0) {
    for (auto* list : {&posted_, &incoming_}) std::erase(*list, &request);
    request.status = status;
    request.nbytes = bytes;
    request.done.store(1);
  }
  // Delivers a message from the other proxy.
  void arrives(ProxyMessage::Kind kind, uint32_t index, uint64_t value) {
    Bytes bytes;
    Writer writer(bytes);
    writer.u8(static_cast<uint8_t>(kind));
    writer.u32(index);
    writer.u64(value);
    ASSERT_FALSE(incoming_.empty());
    Request& request = *incoming_.front();
    std::memcpy(request.data, bytes.data(), bytes.size());
    end(request, {}, bytes.size());
  }

  struct Put {
    Request* request;
    uint32_t region;
    uint64_t offset;
  };
  struct Atomic {
    uint32_t region;
    uint64_t offset;
    AtomicOp op;
    std::optional<Result<uint64_t>> answer = {};
    bool abandoned = false;
  };
  std::string name_ = "the peer";
  Status usable_;
  bool room_ = true;
  bool stuck_ = false;
  bool released_ = true;
  int woken_ = 0;
  std::vector<Request*> posted_;
  std::vector<Request*> incoming_;
  std::vector<Put> moves_;
  std::vector<Atomic> atomics_;
  std::vector<uint64_t> discarded_;
  Status accused_;
};

class ProxyTest : public unit::GpuTest {
 protected:
  void SetUp() override {
    unit::GpuTest::SetUp();
    Result<std::shared_ptr<ProxyMemory>> made = ProxyMemory::create(gpu);
    ASSERT_TRUE(is_ok(made));
    memory_ = *made;
    ASSERT_TRUE(unit::eventually([this] {
      Result<bool> open = memory_->is_open();
      return open.ok() && *open;
    }));
    auto port = std::make_unique<FakePort>();
    port_ = port.get();
    proxy_ = std::make_unique<Proxy>(std::move(port), memory_);
  }
  void TearDown() override {
    for (Request* request : std::vector(port_->posted_)) port_->end(*request, {});
    proxy_->close();
    proxy_.reset();
    memory_.reset();
    unit::GpuTest::TearDown();
  }

  // Submits a put or get on a registered region, and one with the same index but an outdated
  // version.
  void move_by_regions(uint64_t way, OpKind kind, const char* refused) {
    RemoteTarget target;
    target.index = 5;
    target.version = 2;
    proxy_->know(target);
    kernels::Ticket ticket = message(8, /*data=*/0x1000);
    ticket.place = {5 | way, 2, 64};
    const uint64_t known = hand_in(kMoveQueue, ticket);
    ticket.place.version = 1;
    const uint64_t outdated = hand_in(kMoveQueue, ticket);
    proxy_->serve();
    ASSERT_EQ(port_->moves_.size(), 1u);
    EXPECT_EQ(port_->moves_[0].request->kind, kind);
    EXPECT_EQ(port_->moves_[0].region, 5u);
    EXPECT_EQ(port_->moves_[0].offset, 64u);
    EXPECT_FALSE(answer(kMoveQueue, known));
    EXPECT_EQ(fault(kMoveQueue, outdated), OH_LANE_FAILED);
    EXPECT_TRUE(fails_with(proxy_->take_error(), OH_ERR_RETIRED, refused));
    port_->end(*port_->moves_[0].request, {});
    proxy_->serve();
    EXPECT_EQ(fault(kMoveQueue, known), OH_LANE_OK);
  }
  // Submits an atomic on a registered region.
  uint64_t hand_in_atomic(uint64_t way, uint64_t timeout_ns = UINT64_MAX) {
    RemoteTarget target;
    target.index = 5;
    target.version = 2;
    proxy_->know(target);
    kernels::Ticket ticket = message(/*expected=*/9, /*value=*/3);
    ticket.place = {5 | way, 2, 64};
    ticket.timeout_ns = timeout_ns;
    return hand_in(kMoveQueue, ticket);
  }

  // Submits a ticket as a kernel does. Returns its number.
  uint64_t hand_in(uint32_t queue, const kernels::Ticket& fields) {
    proxy_->use(queue);
    const uint64_t number = next_[queue]++;
    kernels::Ticket& ticket = memory_->queue(queue).tickets[number % kernels::kTickets];
    ticket = fields;
    ticket.number = number + 1;
    return number;
  }
  static kernels::Ticket message(uint64_t bytes, uint64_t data = 0) {
    kernels::Ticket ticket{};
    ticket.data = data;
    ticket.bytes = bytes;
    ticket.timeout_ns = UINT64_MAX;
    return ticket;
  }
  // Returns null if there is no answer yet.
  const kernels::TicketAnswer* answer(uint32_t queue, uint64_t number) const {
    const kernels::TicketAnswer& answer = memory_->queue(queue).answers[number % kernels::kTickets];
    return answer.number == number + 1 ? &answer : nullptr;
  }
  uint64_t fault(uint32_t queue, uint64_t number) const {
    const kernels::TicketAnswer* found = answer(queue, number);
    return found ? found->fault : UINT64_MAX;
  }

  std::shared_ptr<ProxyMemory> memory_;
  FakePort* port_ = nullptr;
  std::unique_ptr<Proxy> proxy_;
  uint64_t next_[kernels::kProxyQueues] = {};
};

}  // namespace proxy_test
