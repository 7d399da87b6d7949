// SPDX-License-Identifier: Apache-2.0
//
// Proxy: the host's part of the stream domain over a link that kernels may not use. It takes the
// tickets of kernels (kernels/proxy.h), posts them on the peer as operations of the host domain
// under tags of their own, and answers. Which path these take is the peer's choice.
//
//   a ticket of a lane:   WAITING ──▶ POSTED ──▶ ENDED, answered
//   or a put              (its turn)    └──▶ DOUBT: the other side may still be at the buffer ──▶ …
//
//   reset of a lane:      IDLE ──▶ ENDING ──▶ TOLD ──▶ IDLE, next epoch
//                                  all of    theirs,
//                                  ours      too: messages of the old epoch are dropped
//
// Signals and resets are messages, too: they come behind what was sent before them.
//
// Threading: the endpoint's progress thread serves; any thread calls, asks, and closes.
#pragma once

#include <array>
#include <deque>
#include <memory>
#include <unordered_map>

#include "lane/stream_proxy.h"
#include "link/request.h"
#include "path/path.h"

namespace oh {

class Proxy final : public StreamProxy {
 public:
  Proxy(Link& link, std::shared_ptr<ProxyMemory> memory)
      : StreamProxy(std::move(memory)), link_(link) {}

  void know(const RemoteTarget& target) override;
  bool serve(Endpoint& endpoint) override;
  void close() override;
  Status failure(uint32_t lane, LaneSide side) override;
  Status take_error() override;
  void reset(uint32_t lane, uint64_t before) override;
  uint64_t resets(uint32_t lane) const override {
    return resets_[lane].load(std::memory_order_acquire);
  }
  // From when it is wanted, by either side, until the lane is taken up again.
  bool is_resetting(uint32_t lane) override {
    MutexLock lock(mutex_);
    return reset_[lane].wanted || reset_[lane].under_way;
  }

 private:
  enum class State : uint8_t { kFree, kWaiting, kPosted };
  // A ticket of a lane, or a put.
  struct Work {
    State state = State::kFree;
    bool small = false;  // its bytes are in the payload
    uint64_t number = 0;
    uint64_t bytes = 0;
    uint8_t* data = nullptr;
    int64_t deadline = 0;
    Request request;
  };
  struct Half {
    uint64_t oldest = 0;  // that has not ended
    uint64_t next = 0;    // ticket
    std::array<Work, kernels::kTickets> works;
    Status failed;  // it takes no more
    Status warned;
    bool told = false;
  };
  struct Wait {
    bool waits = false;
    uint64_t number = 0;
    uint64_t count = 0;
    int64_t deadline = 0;
  };
  struct Slot {
    uint64_t arrived = 0;  // and not taken
    uint64_t next = 0;
    std::array<Wait, kernels::kTickets> waits;
  };
  // A message between the two proxies.
  enum class Kind : uint8_t { kSignal = 1, kReset = 2 };
  struct Saying {
    Bytes bytes;
    uint64_t ticket = 0;  // of a signal: 1 + its number
    bool posted = false;
    Request request;
  };
  struct Reset {
    bool wanted = false;
    bool under_way = false;
    bool told = false;
    uint64_t epoch = 0;  // that the lane has
    uint64_t heard = 0;  // that the other side begins
  };

  // Behind the tags of barriers, which are behind those of batches.
  static constexpr uint64_t kFirstTag = OH_TAG_MAX + 1 + (uint64_t{3} << 61);
  static constexpr const char* kTooLate = "the deadline passed before the other side came";
  static uint64_t fault_of(const Status& status);
  static int64_t deadline_of(const kernels::Ticket& ticket);
  static void renew(Request& request);
  const kernels::Ticket* ticket(uint32_t queue, uint64_t number) const;
  void answer(uint32_t queue, uint64_t number, uint64_t fault, uint64_t bytes = 0);

  // proxy.cc: lanes.
  bool serve_half(Endpoint& endpoint, uint32_t queue) OH_REQUIRES(mutex_);
  bool take_all(uint32_t queue) OH_REQUIRES(mutex_);
  void take(uint32_t queue, const kernels::Ticket& ticket) OH_REQUIRES(mutex_);
  bool post(Endpoint& endpoint, uint32_t queue, Work& work) OH_REQUIRES(mutex_);
  bool look_after(uint32_t queue, Work& work) OH_REQUIRES(mutex_);
  bool end_request(Request& request, const Status& why);
  Status result_of(const Request& request) const;
  void finish(uint32_t queue, Work& work, const Status& status) OH_REQUIRES(mutex_);
  void fail(uint32_t queue, oh_status code, const std::string& why) OH_REQUIRES(mutex_);
  bool end_all(uint32_t queue) OH_REQUIRES(mutex_);
  uint64_t tag_of(uint32_t lane) const OH_REQUIRES(mutex_);

  // proxy_puts.cc.
  bool serve_puts(Endpoint& endpoint) OH_REQUIRES(mutex_);
  Status post_put(Endpoint& endpoint, Work& work, const kernels::ProxyPlace& place)
      OH_REQUIRES(mutex_);
  bool look_after_put(Work& work) OH_REQUIRES(mutex_);
  void end_put(Work& work, const Status& status) OH_REQUIRES(mutex_);

  // proxy_control.cc: signals, resets, and the messages for them.
  bool hear(Endpoint& endpoint) OH_REQUIRES(mutex_);
  Status heard(ByteView bytes) OH_REQUIRES(mutex_);
  void say(Kind kind, uint32_t index, uint64_t value, uint64_t ticket = 0) OH_REQUIRES(mutex_);
  bool speak(Endpoint& endpoint) OH_REQUIRES(mutex_);
  void look_for_loss(uint32_t queue) OH_REQUIRES(mutex_);
  bool take_signals() OH_REQUIRES(mutex_);
  bool serve_slot(uint32_t slot) OH_REQUIRES(mutex_);
  void end_wait(uint32_t slot, Wait& wait, uint64_t fault) OH_REQUIRES(mutex_);
  void begin_reset(uint32_t lane) OH_REQUIRES(mutex_);
  bool move_reset(uint32_t lane) OH_REQUIRES(mutex_);

  Link& link_;
  std::atomic<uint64_t> resets_[OH_LANES] = {};

  Mutex mutex_;  // taken before the link's lock
  bool closed_ OH_GUARDED_BY(mutex_) = false;
  bool lost_ OH_GUARDED_BY(mutex_) = false;
  Half halves_[kernels::kProxyLanes] OH_GUARDED_BY(mutex_);
  Slot slots_[onehop::detail::kSignalSlots] OH_GUARDED_BY(mutex_);
  Reset reset_[OH_LANES] OH_GUARDED_BY(mutex_);
  uint64_t next_signal_ OH_GUARDED_BY(mutex_) = 0;
  uint64_t next_put_ OH_GUARDED_BY(mutex_) = 0;
  std::array<Work, kernels::kTickets> puts_ OH_GUARDED_BY(mutex_);
  // Regions that puts may name, by their index: of each the latest that was put to.
  std::unordered_map<uint32_t, RemoteTarget> targets_ OH_GUARDED_BY(mutex_);
  Status warned_ OH_GUARDED_BY(mutex_);  // of a put, a signal, or a wait for signals
  std::deque<Saying> sayings_ OH_GUARDED_BY(mutex_);
  bool hears_ OH_GUARDED_BY(mutex_) = false;  // the receive is posted
  uint8_t hearing_[64] OH_GUARDED_BY(mutex_) = {};
  Request ear_ OH_GUARDED_BY(mutex_);
};

// As MakeStreamProxy.
std::unique_ptr<StreamProxy> make_proxy(Link& link, std::shared_ptr<ProxyMemory> memory);

}  // namespace oh
