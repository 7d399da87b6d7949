// SPDX-License-Identifier: Apache-2.0
//
// Shared by the tests of messages between kernels: groups of host threads in place of groups of GPU
// threads, and two sides of a lane in ordinary memory.
//
// Threading: a HostGroup belongs to one thread, a Crew to all its threads; TwoSides only provides
// memory.
#pragma once

#include <barrier>
#include <functional>
#include <memory>

#include "onehop/detail/receiver.h"
#include "onehop/detail/sender.h"
#include "onehop/detail/signal.h"
#include "unit/device_protocol.h"

namespace unit {

struct Shape {
  uint32_t teams = 1;
  uint32_t threads = 1;  // per team
  uint32_t parts = 1;    // per team; they divide its threads
};

// State shared by threads that synchronise. Values alternate between two slots, as in a thread
// block.
struct Room {
  explicit Room(uint32_t threads) : barrier(threads), says{{}, {}} {
    for (auto& each : says) each.resize(threads);
  }
  std::barrier<> barrier;
  uint64_t values[2] = {};
  std::vector<uint8_t> says[2];
  std::atomic<uint32_t> fault{0};
};

// One of the threads that share a Room.
class Guest {
 public:
  Guest(Room& room, uint32_t at) : room_(room), at_(at) {}
  bool leads() const { return at_ == 0; }
  void sync() { room_.barrier.arrive_and_wait(); }
  void give_up(uint32_t fault) { room_.fault = fault; }
  uint32_t end() {
    leads() ? sync() : static_cast<void>(room_.barrier.arrive());
    return leads() ? room_.fault.load() : 0;
  }
  uint64_t share(uint64_t value) {
    turn_ ^= 1;
    if (leads()) room_.values[turn_] = value;
    sync();
    return room_.values[turn_];
  }
  bool any(bool flag) {
    turn_ ^= 1;
    room_.says[turn_][at_] = flag;
    sync();
    bool found = false;
    for (uint8_t each : room_.says[turn_]) found = found || each != 0;
    return found;
  }
  void copy(uint8_t* to, const uint8_t* from, uint64_t bytes) const {
    copy_together(Lanes{at_, static_cast<uint32_t>(room_.says[0].size())}, to, from, bytes);
  }

 private:
  struct Lanes {
    static constexpr unsigned kAtOnce = 4;
    uint32_t at;
    uint32_t of;
    unsigned lane() const { return at; }
    unsigned count() const { return of; }
    Pair next(const Pair& /*own*/, const Pair* words, uint64_t i, bool valid, bool /*last*/) const {
      return valid ? words[i + 1] : Pair{};
    }
  };
  Room& room_;
  uint32_t at_;
  uint32_t turn_ = 0;
};

// The threads of one operation; half.h lists the protocol's requirements for a group.
struct Crew {
  explicit Crew(Shape of) : shape(of), all(of.teams * of.threads) {
    for (uint32_t i = 0; i < of.teams; ++i) teams.push_back(std::make_unique<Room>(of.threads));
    for (uint32_t i = 0; i < of.teams * of.parts; ++i) {
      parts.push_back(std::make_unique<Room>(of.threads / of.parts));
    }
  }
  Shape shape;
  std::barrier<> all;  // separates a launch from the next one
  std::vector<std::unique_ptr<Room>> teams;
  std::vector<std::unique_ptr<Room>> parts;
  std::function<void()> follow;    // for an early start: waits for preceding operations
  std::function<void()> let_next;  // likewise: lets the next one begin once all threads called it
};

class HostPart : public Guest {
 public:
  HostPart(Room& room, uint32_t at, uint32_t number, uint32_t parts)
      : Guest(room, at), number_(number), parts_(parts) {}
  uint32_t number() const { return number_; }
  uint32_t parts() const { return parts_; }

 private:
  uint32_t number_;
  uint32_t parts_;
};

class HostGroup : public Guest {
 public:
  HostGroup(Crew& crew, uint32_t rank)
      : Guest(*crew.teams[rank / crew.shape.threads], rank % crew.shape.threads),
        crew_(crew),
        rank_(rank),
        part_(part_of(crew, rank)) {}

  uint32_t rank() const { return rank_; }
  uint32_t size() const { return teams() * crew_.shape.threads; }
  uint32_t team() const { return rank_ / crew_.shape.threads; }
  uint32_t teams() const { return crew_.shape.teams; }
  HostPart& part() { return part_; }
  void follow() const {
    if (crew_.follow) crew_.follow();
  }
  void let_next() const {
    if (crew_.let_next) crew_.let_next();
  }

  // Not part of the protocol: one kernel ends before the next begins.
  void launch_ends() { crew_.all.arrive_and_wait(); }

 private:
  static HostPart part_of(Crew& crew, uint32_t rank) {
    const uint32_t threads = crew.shape.threads / crew.shape.parts;
    const uint32_t number = rank % crew.shape.threads / threads;
    return {*crew.parts[rank / threads], rank % threads, number, crew.shape.parts};
  }

  Crew& crew_;
  uint32_t rank_;
  HostPart part_;
};

// Starts a thread for each member of the crew.
template <typename Body>
void start_all(Threads& threads, Crew& crew, Body body) {
  for (uint32_t rank = 0; rank < crew.shape.teams * crew.shape.threads; ++rank) {
    threads.start([&crew, rank, body] {
      HostGroup group(crew, rank);
      body(group);
    });
  }
}

// A group of only the calling thread.
struct Alone {
  Crew crew{Shape{}};
  HostGroup group{crew, 0};
};

struct Geometry {
  uint32_t ring_shift = 5;
  uint32_t chunk_slots = 4;  // a power of two
  uint32_t chunk_shift = 6;
  uint64_t small_max = UINT64_MAX;
  uint8_t epoch = 1;
  uint64_t position = 0;  // of the first line and the first chunk
  uint64_t timeout_ns = uint64_t{100} * 1000 * 1000 * 1000;
};

// The memory of both sides of a lane, and a handle for each side.
class TwoSides {
 public:
  explicit TwoSides(const Geometry& geometry = {}) {
    for (Side& side : sides_) make(side, geometry);
    for (int i : {0, 1}) connect(sides_[i], sides_[1 - i]);
  }

  // An operation by several teams passes a token to all its threads.
  oh_lane_handle handle(int side, uint32_t token = 0) const {
    oh_lane_handle handle = sides_[side].handle;
    handle.token = token;
    return handle;
  }
  LaneMemory& memory(int side) { return *mine(sides_[side].handle); }
  LaneNotice& notice(int side) { return sides_[side].notices[0]; }
  LaneNotice& signals_notice(int side) { return sides_[side].notices[1]; }
  LaneSignals& signals(int side) { return *sides_[side].signals; }
  void abort(int side) { HostAtomics::store_release(&notice(side).abort.word, 1); }

  // Returns all lane memory of a side, including what the peer stores there.
  std::vector<uint64_t> snapshot(int side) const {
    const std::vector<Block>& blocks = sides_[side].blocks;
    std::vector<uint64_t> words(blocks.size() * 8);
    memcpy(words.data(), blocks.data(), words.size() * 8);
    return words;
  }

  // Adds memory of the peer to this side's import table.
  void import(int side, uint32_t number, const void* base, uint64_t size) {
    ImportTable* table = sides_[side].imports.get();
    uint64_t i = number & kImportMask;
    while (table->entries[i].size.high != 0) i = (i + 1) & kImportMask;
    ImportEntry& entry = table->entries[i];
    write_import<HostAtomics>(&entry, number, size, reinterpret_cast<uint64_t>(base));
  }
  // Puts another region in the place of one.
  void rename_import(int side, uint32_t number, uint32_t other) {
    ImportTable* table = sides_[side].imports.get();
    uint64_t i = number & kImportMask;
    while (table->entries[i].size.high != number) i = (i + 1) & kImportMask;
    write_import<HostAtomics>(&table->entries[i], other, 0, 0);
  }

 private:
  static constexpr uint64_t kImportShift = 3;
  static constexpr uint64_t kImportMask = (1 << kImportShift) - 1;
  struct alignas(64) Block {
    uint64_t words[8];
  };
  struct Freed {
    void operator()(ImportTable* table) const { free(table); }
  };
  struct Side {
    std::vector<Block> blocks;
    std::unique_ptr<LaneNotice[]> notices = std::make_unique<LaneNotice[]>(2);
    std::unique_ptr<LaneSignals> signals = std::make_unique<LaneSignals>();
    std::unique_ptr<ImportTable, Freed> imports;
    oh_lane_handle handle = {};
  };

  static void make(Side& side, const Geometry& geometry) {
    const uint64_t lines_at = sizeof(LaneMemory);
    const uint64_t chunks_at = lines_at + (uint64_t{16} << geometry.ring_shift) + 64;
    const uint64_t end =
        chunks_at + (static_cast<uint64_t>(geometry.chunk_slots) << geometry.chunk_shift);
    side.blocks.resize((end + 63) / 64 + 1);
    side.imports.reset(static_cast<ImportTable*>(
        calloc(1, sizeof(ImportTable) + (sizeof(ImportEntry) << kImportShift))));
    side.imports->shift = kImportShift;
    side.handle.layout = OH_LANE_LAYOUT;
    side.handle.lane = OH_LANES - 1;  // its notice lies just before that of signals
    side.handle.ring_shift = geometry.ring_shift;
    side.handle.lines_at = lines_at;
    side.handle.chunks_at = chunks_at / 64 * 64;
    side.handle.chunk_slots = geometry.chunk_slots;
    side.handle.chunk_shift = geometry.chunk_shift;
    side.handle.timeout_ns = geometry.timeout_ns;
    side.handle.small_max = geometry.small_max;
    side.handle.mine = reinterpret_cast<uint64_t>(side.blocks.data());
    side.handle.notice = reinterpret_cast<uint64_t>(side.notices.get());
    side.handle.signals = reinterpret_cast<uint64_t>(side.signals.get());
    side.handle.imports = reinterpret_cast<uint64_t>(side.imports.get());
    begin_at(*mine(side.handle), geometry);
  }
  // Sets the state as if all messages before the first position had been sent and received.
  static void begin_at(LaneMemory& memory, const Geometry& geometry) {
    const uint64_t at = geometry.position;
    for (LaneHalf* half : {&memory.tx, &memory.rx}) {
      half->state = make_state(geometry.epoch, at);
      half->chunks = at;
      half->through = make_word(geometry.epoch, at);
    }
    memory.credit = memory.kept_credit = make_word(geometry.epoch, at);
    for (uint64_t i = at; i > 0 && i + geometry.chunk_slots > at; --i) {
      const uint64_t slot = (i - 1) % geometry.chunk_slots;
      for (uint64_t* words : {memory.filled, memory.emptied, memory.kept_emptied}) {
        words[slot] = make_word(geometry.epoch, i);
      }
    }
  }
  static void connect(Side& side, const Side& other) {
    side.handle.theirs = other.handle.mine;
    side.handle.their_signals = other.handle.signals;
  }

  Side sides_[2];
};

}  // namespace unit
