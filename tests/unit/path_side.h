// SPDX-License-Identifier: Apache-2.0
//
// One side of a link with all the parts a path needs, for tests of paths. Frames that the path
// sends stay in the fake channel until the test delivers them to the peer.
//
// Threading: one thread.
#pragma once

#include <utility>
#include <vector>

#include "path/direct/transfers.h"
#include "path/staging/staging_path.h"
#include "unit/fake_link.h"
#include "unit/support.h"

namespace unit {

// The message streams: runs wait here until the test moves and ends them.
class FakeStreams final : public oh::RunStreams {
 public:
  explicit FakeStreams(oh::Link& link) : link_(link) {}

  void await_cts(oh::Request* run) override {
    run->phase = oh::Phase::kOffered;
    offered.push_back(run);
  }
  oh::Status begin_incoming(oh::Request* run, uint64_t op) override {
    run->phase = oh::Phase::kStream;
    run->theirs = op;
    std::erase(offered, run);
    incoming.push_back(run);
    return {};
  }
  void refuse(oh::Request* run, const oh::Status& why) override { end(run, why); }
  bool cancel(oh::Request* run, const oh::Status& status, bool give_up) override {
    return (!busy || give_up) && (end(run, status), true);
  }
  bool stop(oh::Request* run, const oh::Status& why) override {
    return !busy && (end(run, why), true);
  }
  void end(oh::Request* run, const oh::Status& status) {
    std::erase(offered, run);
    std::erase(incoming, run);
    link_.finish(*run, status);
  }

  bool busy = false;  // parts are in flight: runs cannot be cancelled
  std::vector<oh::Request*> offered;
  std::vector<oh::Request*> incoming;

 private:
  oh::Link& link_;
};

// The test creates the path itself, with context().
struct PathSide : oh::PathEvents {
  PathSide() { link.my_bell = &page.doorbell(); }
  oh::PathContext context(oh::RmaUse use = oh::RmaUse::kOff) {
    return {link, *this, regions, transfers, streams, use};
  }
  void moved(oh::Operation&, oh::Status status) override { ends.push_back(std::move(status)); }
  std::vector<oh::Frame>& frames() { return fakes.channel->frames; }
  std::vector<oh::Frame> take_frames() { return std::exchange(frames(), {}); }
  // Whether exactly one operation has ended, with this code.
  ::testing::AssertionResult ended_with(oh_status code) const {
    if (ends.size() != 1) return ::testing::AssertionFailure() << ends.size() << " ends";
    return code == OH_OK ? is_ok(ends[0]) : fails_with(ends[0], code);
  }

  FakeLink fakes;
  oh::Link& link = fakes.link;
  oh::ControlPage page = std::move(*oh::ControlPage::create());
  oh::RegionTable regions{page};
  oh::Transfers transfers{link};
  FakeStreams streams{link};
  std::vector<oh::Status> ends;
};

// Delivers the frames of one side to the other side's path.
template <typename Side>
oh::Status carry(Side& from, Side& to) {
  for (const oh::Frame& frame : from.take_frames()) OH_RETURN_IF_ERROR(to.path.on_frame(frame));
  return {};
}

// Sets up a put or get of blocks in a region; nothing has been pushed yet.
inline void prepare(oh::Operation& operation, oh::OpKind kind, const oh::RegionRecord& region,
                    std::vector<oh::Block> blocks) {
  operation = {};
  operation.kind = kind;
  operation.op = 7;
  operation.region = region.index;
  operation.version = region.version;
  operation.base = reinterpret_cast<uint64_t>(region.base);
  auto list = std::make_shared<std::vector<oh::Block>>(std::move(blocks));
  operation.blocks = *list;
  operation.list = std::move(list);
  for (const oh::Block& block : operation.blocks) operation.missing += block.size;
}

// Whether all blocks of an operation are equal on both sides.
inline bool are_equal(const oh::Operation& operation) {
  return std::ranges::all_of(operation.blocks, [&](const oh::Block& block) {
    const auto* remote = reinterpret_cast<const uint8_t*>(operation.base + block.remote_offset);
    return std::equal(remote, remote + block.size, block.local);
  });
}

// Both ends of a link, each with a path, and an operation by the initiator on a region of the
// target. `Side` derives from PathSide and has the path as `path`.
template <typename Side>
class PathTest : public ::testing::Test {
 protected:
  // Two disjoint blocks.
  void prepare(oh::OpKind kind, uint64_t second = 600) {
    unit::prepare(operation_, kind, *region_,
                  {{local_.data(), 100, 300}, {local_.data() + 400, second, 200}});
    initiator_.path.begin(operation_);
  }
  // arrive() delivers the initiator's frames to the target, answer() the target's to the initiator.
  oh::Status arrive() { return carry(initiator_, target_); }
  oh::Status answer() { return carry(target_, initiator_); }
  // Pushes the whole operation and delivers its frames to the target.
  void begin(oh::OpKind kind, uint64_t second = 600) {
    prepare(kind, second);
    EXPECT_TRUE(initiator_.path.push(operation_));
    EXPECT_TRUE(is_ok(arrive()));
  }

  Side initiator_;
  Side target_;
  oh::Bytes remote_ = Random(1).bytes(1000);
  oh::Bytes local_ = Random(2).bytes(1000);
  std::shared_ptr<oh::RegionRecord> region_ =
      *target_.regions.add(remote_.data(), remote_.size(), nullptr);
  oh::Operation operation_;
};

}  // namespace unit
