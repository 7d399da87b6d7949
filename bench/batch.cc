// SPDX-License-Identifier: Apache-2.0
//
// Batches: many blocks by one call; where they lie is in payload.h.
#include <cstring>

#include "clock.h"
#include "side.h"

namespace bench {
namespace {

bool is_prepared(const Spec& spec) {
  return spec.mode == Mode::kPutPrepared || spec.mode == Mode::kGetPrepared;
}

// All blocks as one message, until the other side has put them where they belong: what a program
// does that has no batches.
class Bulk {
 public:
  Bulk(Side& side, const Spec& spec)
      : side_(side), spec_(spec), message_(side.make_buffer(spec, spec.blocks * spec.size)) {}

  oh_path send(const Blocks& blocks) {
    uint8_t* at = message_->data();
    for (size_t b = 0; b < spec_.blocks; ++b) {
      std::memcpy(at + b * spec_.size, blocks.block(b), spec_.size);
    }
    onehop::Request sent = side_.peer().isend(at, message_->size(), kDataTag);
    uint8_t answer = 0;
    side_.peer().recv(&answer, sizeof(answer), kControlTag);
    return sent.wait().path;
  }
  void receive(const Blocks& blocks) {
    const uint8_t* at = message_->data();
    side_.peer().recv(message_->data(), message_->size(), kDataTag);
    for (size_t b = 0; b < spec_.blocks; ++b) {
      std::memcpy(blocks.block(b), at + b * spec_.size, spec_.size);
    }
    const uint8_t answer = 1;
    side_.peer().send(&answer, sizeof(answer), kControlTag);
  }

 private:
  Side& side_;
  const Spec& spec_;
  std::unique_ptr<Buffer> message_;
};

// Batches as the mode has them: described anew each time, prepared, or as one message.
class Batches : public Wire {
 public:
  Batches(Side& side, const Spec& spec) : Wire(side), side_(side), spec_(spec) {
    const bool bulk = spec.mode == Mode::kBulk;
    passive_ = !side.first() && !bulk;
    two_sided_ = bulk;
    auto blocks = std::make_unique<Blocks>(
        spec, side.number(), side.make_buffer(spec, spec.blocks * Blocks::pitch(spec)));
    blocks_ = blocks.get();
    (puts(spec) == side.first() ? out_ : in_) = std::move(blocks);
    if (bulk) bulk_.emplace(side, spec);
    Buffer& memory = blocks_->memory();
    region_.emplace(side.endpoint().register_memory(memory.place(), memory.size()));
    remote_.emplace(side.swap_region(*region_));
    for (size_t i = 0; i < spec.blocks && !spec.strided; ++i) {
      local_.push_back(blocks_->offset(i, false));
      away_.push_back(blocks_->offset(i, true));
    }
    if (side.first()) describe(spec.size);
  }

  void send(uint64_t) override { move(); }
  void recv(uint64_t) override { side_.first() ? move() : bulk_->receive(*blocks_); }
  std::string path() const override { return oh_path_name(path_); }

  // Posts what has moved already, but only the first byte of each block.
  void post_first_bytes(uint64_t count, Outcome* outcome) {
    describe(1);
    for (uint64_t i = 0; i < count; ++i) {
      auto start = Clock::now();
      move();
      outcome->post_us.push_back(microseconds(start, Clock::now()));
    }
  }

 private:
  void describe(size_t length) {
    Buffer& memory = blocks_->memory();
    lengths_.assign(local_.size(), length);
    batch_ = onehop::detail::sized<oh_batch>();
    batch_.local = memory.place();
    batch_.local_size = memory.size();
    batch_.count = spec_.blocks;
    if (spec_.strided) {
      batch_.local_stride = batch_.remote_stride = Blocks::pitch(spec_);
      batch_.length = length;
    } else {
      batch_.local_offsets = local_.data();
      batch_.remote_offsets = away_.data();
      batch_.lengths = lengths_.data();
    }
    if (!is_prepared(spec_)) return;
    prepared_.emplace(puts(spec_) ? side_.peer().prepare_put(*remote_, batch_)
                                  : side_.peer().prepare_get(*remote_, batch_));
  }
  void move() { path_ = bulk_ ? bulk_->send(*blocks_) : start().wait().path; }
  onehop::Request start() {
    if (prepared_) return prepared_->post();
    return puts(spec_) ? side_.peer().put_batch(*remote_, batch_)
                       : side_.peer().get_batch(*remote_, batch_);
  }

  Side& side_;
  const Spec spec_;
  Blocks* blocks_;
  std::optional<Bulk> bulk_;
  std::optional<onehop::Region> region_;
  std::optional<onehop::RemoteRegion> remote_;
  std::vector<uint64_t> local_;
  std::vector<uint64_t> away_;
  std::vector<uint64_t> lengths_;
  oh_batch batch_{};
  std::optional<onehop::PreparedBatch> prepared_;
  oh_path path_ = OH_PATH_NONE;
};

}  // namespace

Outcome batch(Side& side, const Spec& spec) {
  Batches wire(side, spec);
  Outcome outcome = run(wire, spec);
  if (side.first() && is_prepared(spec)) {
    wire.post_first_bytes(spec.warmup + spec.iterations, &outcome);
  }
  side.sync();
  return outcome;
}

}  // namespace bench
