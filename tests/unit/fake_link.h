// SPDX-License-Identifier: Apache-2.0
//
// A link that has only a channel, for tests of classes that move bytes.
//
// Threading: one thread.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <vector>

#include "link/link.h"
#include "path/message_selection.h"

namespace unit {

// Accepts frames while it has room.
class FakeChannel final : public oh::Channel {
 public:
  bool push(const oh::Frame& frame) override {
    if (!room) {
      if (when_full) when_full(frame);
      return false;
    }
    frames.push_back(frame);
    if (frame.payload_size > 0) {
      frames.back().payload =
          payloads.emplace_back(frame.payload, frame.payload + frame.payload_size).data();
    }
    return true;
  }
  size_t max_payload() const override { return 4096; }
  size_t max_inline() const override { return 256; }
  size_t part_of(uint64_t size) const override { return std::min(size, part); }
  uint64_t credit_returned() const override { return returned; }
  void return_credit(uint64_t bytes) override { given_back += bytes; }
  std::vector<oh::FrameType> types() const {
    std::vector<oh::FrameType> all;
    for (const oh::Frame& frame : frames) all.push_back(frame.type);
    return all;
  }

  bool room = true;
  std::function<void(const oh::Frame&)> when_full;  // runs before a frame is refused
  uint64_t part = UINT64_MAX;  // payload size of each frame of a longer message
  uint64_t returned = 0;       // credit that the peer has returned
  uint64_t given_back = 0;     // credit that this side has returned
  std::vector<oh::Frame> frames;
  std::deque<oh::Bytes> payloads;  // payloads of all frames
};

// The layers above, which only count calls.
class FakeOwner final : public oh::LinkOwner {
 public:
  void serve() override { ++serves; }
  void serve_there() override {}
  void posted() override { ++posts; }
  bool progress_locked(oh::Request*) override { return false; }

  int serves = 0;  // requests for the progress thread
  int posts = 0;
};

struct FakeLink {
  FakeLink() {
    link.path = OH_PATH_SOCKET;
    auto made = std::make_unique<FakeChannel>();
    channel = made.get();
    link.channel = std::move(made);
    link.outbox.attach(channel);
    link.selection = &no_device;
  }
  // Returns the number of operations that the link wants polled.
  int polled() const { return static_cast<int>(completions.polled().load()); }

  FakeOwner owner;
  const oh::MessageSelection no_device;
  oh::Completions completions;
  oh::Link link{owner, completions, /*connection=*/nullptr};
  FakeChannel* channel = nullptr;
};

}  // namespace unit
