// SPDX-License-Identifier: Apache-2.0
//
// Batches: many blocks by one call. Blocks lie apart, with poisoned gaps between them that must
// stay as they are; as lists, the target has them in the opposite order, so nothing can be joined.
#include <cstring>
#include <optional>

#include "payload.h"
#include "side.h"

namespace bench {
namespace {

constexpr size_t kParts = 4;

bool is_bulk(const Spec& spec) { return spec.mode == Mode::kBulk; }
bool puts(const Spec& spec) {
  return spec.mode == Mode::kPut || spec.mode == Mode::kPutPrepared || is_bulk(spec);
}
bool is_prepared(const Spec& spec) {
  return spec.mode == Mode::kPutPrepared || spec.mode == Mode::kGetPrepared;
}

// Where the blocks of a batch lie; the same on both sides.
class Blocks {
 public:
  Blocks(const Side& side, const Spec& spec, int writer)
      : spec_(spec), writer_(writer), memory_(side, spec, spec.blocks * pitch()) {
    for (size_t i = 0; i < spec.blocks && !spec.strided; ++i) {
      local_.push_back(i * pitch());
      remote_.push_back((spec.blocks - 1 - i) * pitch());
      lengths_.push_back(spec.size);
      ones_.push_back(1);
    }
  }

  size_t pitch() const { return 2 * spec_.size; }
  Buffer& memory() { return memory_; }
  // Block i as the writing or reading side counts; the target's places are the other way round.
  uint8_t* block(size_t i, bool target) {
    size_t place = target && !spec_.strided ? spec_.blocks - 1 - i : i;
    return memory_.data() + place * pitch();
  }
  uint64_t seed(size_t i, size_t part) const {
    return seed_of(spec_, writer_, part * spec_.blocks + i);
  }

  void lay_out(size_t part, bool target) {
    poison(memory_.data(), memory_.size());
    for (size_t i = 0; i < spec_.blocks; ++i) {
      fill(block(i, target), spec_.size, seed(i, part));
      stamp(block(i, target), spec_.size, seed(i, part), kNoIteration, 0);
    }
    memory_.publish();
  }
  void poison_all() {
    poison(memory_.data(), memory_.size());
    memory_.publish();
  }
  // Makes the first block that of batch `i`.
  void mark(size_t part, uint64_t i) {
    stamp(block(0, false), spec_.size, seed(0, part), i == 0 ? kNoIteration : i - 1, i);
  }
  // Checks all blocks and the gaps; `i`: the batch that came last.
  uint64_t check(size_t part, uint64_t i, bool target) {
    uint64_t wrong = 0;
    memory_.fetch();
    for (size_t b = 0; b < spec_.blocks; ++b) {
      uint8_t* at = block(b, target);
      wrong += check_message(at, spec_.size, seed(b, part), b == 0 ? i : 0);
      wrong += count_touched(at + spec_.size, spec_.size);
    }
    return wrong;
  }
  oh_batch description() {
    auto batch = onehop::detail::sized<oh_batch>();
    batch.local = memory_.place();
    batch.local_size = memory_.size();
    batch.count = spec_.blocks;
    if (spec_.strided) {
      batch.local_stride = batch.remote_stride = pitch();
      batch.length = spec_.size;
    } else {
      batch.local_offsets = local_.data();
      batch.remote_offsets = remote_.data();
      batch.lengths = lengths_.data();
    }
    return batch;
  }
  // The first byte of each block.
  oh_batch first_bytes() {
    oh_batch batch = description();
    if (spec_.strided) {
      batch.length = 1;
    } else {
      batch.lengths = ones_.data();
    }
    return batch;
  }

 private:
  const Spec& spec_;
  int writer_;
  Buffer memory_;
  std::vector<uint64_t> local_;
  std::vector<uint64_t> remote_;
  std::vector<uint64_t> lengths_;
  std::vector<uint64_t> ones_;
};

// Batches [begin, end) of a part, counted over all parts.
struct Part {
  size_t number;
  uint64_t begin;
  uint64_t end;
};

// A batch as the mode has it: described anew each time, or prepared.
class Batch {
 public:
  Batch(Side& side, const Spec& spec, const onehop::RemoteRegion& remote, const oh_batch& batch)
      : side_(side), put_(puts(spec)), remote_(remote), batch_(batch) {
    if (!is_prepared(spec)) return;
    prepared_.emplace(put_ ? side.peer().prepare_put(remote, batch)
                           : side.peer().prepare_get(remote, batch));
  }
  onehop::Request start() {
    if (prepared_) return prepared_->post();
    return put_ ? side_.peer().put_batch(remote_, batch_) : side_.peer().get_batch(remote_, batch_);
  }

 private:
  Side& side_;
  bool put_;
  const onehop::RemoteRegion& remote_;
  oh_batch batch_;
  std::optional<onehop::PreparedBatch> prepared_;
};

// All blocks as one message, until the other side has put them where they belong: what a program
// does that has no batches.
class Bulk {
 public:
  Bulk(Side& side, const Spec& spec)
      : side_(side), spec_(spec), message_(side, spec, spec.blocks * spec.size) {}

  oh_path send(Blocks& blocks) {
    for (size_t b = 0; b < spec_.blocks; ++b) {
      std::memcpy(message_.data() + b * spec_.size, blocks.block(b, false), spec_.size);
    }
    onehop::Request sent = side_.peer().isend(message_.data(), message_.size(), kDataTag);
    uint8_t answer = 0;
    side_.peer().recv(&answer, sizeof(answer), kControlTag);
    return sent.wait().path;
  }
  void receive(Blocks& blocks) {
    side_.peer().recv(message_.data(), message_.size(), kDataTag);
    for (size_t b = 0; b < spec_.blocks; ++b) {
      std::memcpy(blocks.block(b, true), message_.data() + b * spec_.size, spec_.size);
    }
    const uint8_t answer = 1;
    side_.peer().send(&answer, sizeof(answer), kControlTag);
  }

 private:
  Side& side_;
  const Spec& spec_;
  Buffer message_;
};

// How the blocks get to the other side.
struct Way {
  onehop::RemoteRegion remote;
  std::optional<Bulk> bulk;
};

// Posts what has moved already, but little of it.
void post_first_bytes(Batch batch, uint64_t count, Outcome* outcome) {
  for (uint64_t i = 0; i < count; ++i) {
    auto start = Clock::now();
    batch.start().wait();
    outcome->post_us.push_back(microseconds(start, Clock::now()));
  }
}

void initiate(Side& side, const Spec& spec, Blocks& blocks, Way& way, const Part& part,
              Outcome* outcome) {
  bool put = puts(spec);
  uint64_t count = part.end - part.begin;
  if (put) blocks.lay_out(part.number, false);
  if (!put) blocks.poison_all();
  if (put && !spec.stamped) {
    maybe_corrupt(spec, part.number + 1 == kParts, blocks.block(spec.blocks / 2, false));
    blocks.memory().publish();
  }
  Batch batch(side, spec, way.remote, blocks.description());
  side.sync();
  for (uint64_t i = 0; i < count; ++i) {
    if (put && spec.stamped) {
      blocks.mark(part.number, i);
      maybe_corrupt(spec, part.begin + i + 1 == spec.warmup + spec.iterations,
                    blocks.block(spec.blocks / 2, false));
    }
    auto start = Clock::now();
    outcome->path = way.bulk ? way.bulk->send(blocks) : batch.start().wait().path;
    double us = microseconds(start, Clock::now());
    if (part.begin + i < spec.warmup) continue;
    outcome->samples_us.push_back(us);
    outcome->seconds += us / 1e6;
    outcome->bytes += static_cast<double>(spec.size) * static_cast<double>(spec.blocks);
  }
  if (is_prepared(spec)) {
    post_first_bytes(Batch(side, spec, way.remote, blocks.first_bytes()), count, outcome);
  }
  side.sync();
  if (!put && count > 0) outcome->wrong += blocks.check(part.number, 0, false);
}

void answer(Side& side, const Spec& spec, Blocks& blocks, Way& way, const Part& part,
            Outcome* outcome) {
  bool put = puts(spec);
  uint64_t count = part.end - part.begin;
  if (put) {
    blocks.poison_all();
  } else {
    blocks.lay_out(part.number, true);
    maybe_corrupt(spec, part.number + 1 == kParts, blocks.block(spec.blocks / 2, true));
    blocks.memory().publish();
  }
  side.sync();
  for (uint64_t i = 0; way.bulk && i < count; ++i) way.bulk->receive(blocks);
  side.sync();
  if (!put || count == 0) return;
  outcome->wrong += blocks.check(part.number, spec.stamped ? count - 1 : 0, true);
}

}  // namespace

Outcome batch(Side& side, const Spec& spec) {
  Outcome outcome;
  Blocks blocks(side, spec, puts(spec) ? 0 : 1);
  Buffer& memory = blocks.memory();
  onehop::Region region = side.endpoint().register_memory(memory.place(), memory.size());
  Way way{side.swap_region(region), {}};
  if (is_bulk(spec)) way.bulk.emplace(side, spec);
  uint64_t total = spec.warmup + spec.iterations;
  for (size_t i = 0; i < kParts; ++i) {
    Part part{i, total * i / kParts, total * (i + 1) / kParts};
    if (side.first()) {
      initiate(side, spec, blocks, way, part, &outcome);
    } else {
      answer(side, spec, blocks, way, part, &outcome);
    }
  }
  side.sync();
  return outcome;
}

}  // namespace bench
