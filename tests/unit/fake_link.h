// SPDX-License-Identifier: Apache-2.0
//
// A link that has a channel and nothing else, for tests of what moves bytes.
//
// Threading: one thread.
#pragma once

#include <memory>
#include <vector>

#include "link/link.h"

namespace unit {

// Takes frames while it has room.
class FakeChannel final : public oh::Channel {
 public:
  bool push(const oh::Frame& frame) override {
    if (!room) return false;
    frames.push_back(frame);
    return true;
  }
  size_t max_payload() const override { return 4096; }
  size_t max_inline() const override { return 256; }
  size_t part_of(uint64_t size) const override { return size; }
  uint64_t credit_returned() const override { return 0; }
  void return_credit(uint64_t) override {}

  bool room = true;
  std::vector<oh::Frame> frames;  // their payloads are where they were
};

// What nobody above does.
class FakeHost final : public oh::LinkHost {
 public:
  void recycle(oh::Request*) override {}
  void announce() override {}
  void count_polled(int change) override { polled += change; }
  void serve() override {}
  oh::Status ask_to_serve() override { return {}; }
  oh::Status usable() const override { return {}; }
  void posted() override {}
  oh::Status still_there() override { return {}; }
  bool process_is_dead() override { return false; }
  bool is_outside(bool) override { return true; }
  std::shared_ptr<oh::Peer> keep_alive() override { return nullptr; }
  void look_again() override {}
  void break_off(const oh::Status&) override {}
  bool released(const std::vector<oh::Doubt>&) override { return true; }
  bool make_progress() override { return false; }

  int polled = 0;
};

struct FakeLink {
  FakeLink() {
    link.host = &host;
    link.path = OH_PATH_SOCKET;
    auto made = std::make_unique<FakeChannel>();
    channel = made.get();
    link.channel = std::move(made);
    link.outbox.attach(channel);
  }
  // What the link wants polled.
  int polled() const { return host.polled; }

  FakeHost host;
  oh::Link link;
  FakeChannel* channel = nullptr;
};

}  // namespace unit
