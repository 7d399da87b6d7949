// SPDX-License-Identifier: Apache-2.0
#include "onehop/detail/command.h"

#include <barrier>
#include <cstring>
#include <memory>
#include <tuple>

#include "unit/device_protocol.h"

namespace device_commands_test {
namespace {

using namespace unit;

// A command ring, and the word that returns its slots.
struct Commands {
  Commands(uint32_t shift, uint8_t epoch)
      : slots(size_t{1} << shift), ring{slots.data(), &through, shift, epoch} {}
  // The reset by both sides, after all threads have stopped.
  void next_epoch() {
    for (CommandSlot& slot : slots) slot = {};
    through = 0;
    ring.epoch = onehop::detail::next_epoch(ring.epoch);
  }
  // Sets the state as if all earlier commands had been executed.
  void start_at(uint64_t position) { through = make_word(ring.epoch, position); }

  std::vector<CommandSlot> slots;
  alignas(64) uint64_t through = 0;
  CommandRing ring;
};

// A command whose every byte depends on its number.
Command command_of(uint64_t k) {
  auto mixed = [k](uint64_t salt) { return Random(k * 64 + salt).next(); };
  return {.source = mixed(1),
          .target = mixed(2),
          .bytes = mixed(3),
          .done = 0,
          .done_word = mixed(4),
          .kind = static_cast<uint32_t>(mixed(5)),
          .reserved = static_cast<uint32_t>(mixed(6))};
}
bool same(const Command& one, const Command& other) {
  return memcmp(&one, &other, sizeof(one)) == 0;
}

TEST(DeviceCommandsTest, EveryByteOfACommandArrivesInEveryLapAndEpoch) {
  for (uint32_t shift : {0u, 1u, 3u}) {
    for (uint64_t first : first_positions(shift)) {
      for (uint8_t epoch : kEpochs) {
        Commands commands(shift, epoch);
        commands.start_at(first);
        Command seen{};
        for (uint64_t at = first; at < first + 40; ++at) {
          ASSERT_FALSE(read_command<HostAtomics>(commands.ring, at, &seen));
          ASSERT_TRUE(write_command<HostAtomics>(commands.ring, at, command_of(at)));
          ASSERT_TRUE(read_command<HostAtomics>(commands.ring, at, &seen));
          ASSERT_TRUE(same(seen, command_of(at))) << at;
          finish_command<HostAtomics>(commands.ring, at, seen);
          ASSERT_EQ(poll<HostAtomics>(&commands.through, epoch), at + 1);
        }
      }
    }
  }
}

TEST(DeviceCommandsTest, AFullRingTakesNoMoreAndIsNotWrittenInto) {
  constexpr uint32_t kShift = 2;
  for (uint64_t first : first_positions(kShift)) {
    Commands commands(kShift, 3);
    commands.start_at(first);
    for (uint64_t at = first; at < first + 4; ++at) {
      ASSERT_TRUE(write_command<HostAtomics>(commands.ring, at, command_of(at)));
    }
    std::vector<CommandSlot> before = commands.slots;
    EXPECT_FALSE(write_command<HostAtomics>(commands.ring, first + 4, command_of(99)));
    EXPECT_EQ(memcmp(before.data(), commands.slots.data(), sizeof(CommandSlot) * 4), 0);
    Command seen{};
    ASSERT_TRUE(read_command<HostAtomics>(commands.ring, first, &seen));
    EXPECT_FALSE(write_command<HostAtomics>(commands.ring, first + 4, command_of(99)))
        << "it was read, but is not done";
    finish_command<HostAtomics>(commands.ring, first, seen);
    EXPECT_TRUE(write_command<HostAtomics>(commands.ring, first + 4, command_of(99)));
    EXPECT_FALSE(write_command<HostAtomics>(commands.ring, first + 5, command_of(99)));
    ASSERT_TRUE(read_command<HostAtomics>(commands.ring, first + 1, &seen));
    EXPECT_TRUE(same(seen, command_of(first + 1)));
  }
}

// A command with a missing part is not accepted, whichever part it is.
TEST(DeviceCommandsTest, ACommandWithoutAllItsLanesIsNone) {
  constexpr uint32_t kShift = 1;
  for (uint64_t first : first_positions(kShift)) {
    Commands commands(kShift, 255);
    commands.start_at(first);
    Command seen{};
    Command untouched = command_of(1234);
    for (uint64_t at : {first, first + 2}) {
      CommandSlot before = commands.slots[place_of(kShift, at)];
      ASSERT_TRUE(write_command<HostAtomics>(commands.ring, at, command_of(at)));
      CommandSlot& slot = commands.slots[place_of(kShift, at)];
      CommandSlot whole = slot;
      for (uint32_t missing = 1; missing < 16; ++missing) {
        for (uint32_t lane = 0; lane < kLanes; ++lane) {
          bool gone = (missing >> lane & 1) != 0;
          slot.lanes[lane] = gone ? before.lanes[lane] : whole.lanes[lane];
          uint32_t payload[kLaneWords];
          EXPECT_EQ(read_lane<HostAtomics>(commands.ring, at, lane, payload), !gone);
        }
        seen = untouched;
        EXPECT_FALSE(read_command<HostAtomics>(commands.ring, at, &seen)) << missing;
        EXPECT_TRUE(same(seen, untouched));
      }
      slot = whole;
      ASSERT_TRUE(read_command<HostAtomics>(commands.ring, at, &seen));
      finish_command<HostAtomics>(commands.ring, at, seen);
      ASSERT_TRUE(write_command<HostAtomics>(commands.ring, at + 1, command_of(at + 1)));
      ASSERT_TRUE(read_command<HostAtomics>(commands.ring, at + 1, &seen));
      finish_command<HostAtomics>(commands.ring, at + 1, seen);
    }
  }
}

TEST(DeviceCommandsTest, ADoneWordIsStoredWhereTheCommandSays) {
  Commands commands(1, 9);
  uint64_t words[3] = {11, 12, 13};
  Command command = command_of(1);
  finish_command<HostAtomics>(commands.ring, 0, command);
  EXPECT_EQ(poll<HostAtomics>(&commands.through, 9), 1u) << "without a done word";
  command.done = reinterpret_cast<uint64_t>(&words[1]);
  command.done_word = 0x0123456789abcdef;
  finish_command<HostAtomics>(commands.ring, 1, command);
  EXPECT_EQ(HostAtomics::load_acquire(&words[1]), 0x0123456789abcdefu);
  EXPECT_EQ(words[0], 11u);
  EXPECT_EQ(words[2], 13u);
  EXPECT_EQ(poll<HostAtomics>(&commands.through, 9), 2u);
}

// Late stores by a worker or a producer of an earlier epoch.
TEST(DeviceCommandsTest, LateStoresOfAnEarlierEpochAreNothing) {
  for (uint8_t epoch : kEpochs) {
    Commands commands(1, epoch);
    uint64_t done = 0;
    CommandRing old = commands.ring;
    Command command = command_of(5);
    command.done = reinterpret_cast<uint64_t>(&done);
    command.done_word = make_word(epoch, 77);
    for (uint64_t at : {0, 1}) ASSERT_TRUE(write_command<HostAtomics>(old, at, command));
    commands.next_epoch();
    uint8_t now = commands.ring.epoch;
    Command seen{};
    ASSERT_TRUE(write_command<HostAtomics>(old, 0, command));
    EXPECT_FALSE(read_command<HostAtomics>(commands.ring, 0, &seen)) << "a late producer";
    for (uint64_t at : {0, 1}) {
      ASSERT_TRUE(write_command<HostAtomics>(commands.ring, at, command_of(at)));
    }
    finish_command<HostAtomics>(old, 1, command);
    EXPECT_EQ(count_of(done, now), 0u) << "a late done word";
    EXPECT_EQ(poll<HostAtomics>(&commands.through, now), 0u);
    EXPECT_FALSE(write_command<HostAtomics>(commands.ring, 2, command_of(2)))
        << "a late worker gives no slot back";
    ASSERT_TRUE(read_command<HostAtomics>(commands.ring, 0, &seen));
    EXPECT_TRUE(same(seen, command_of(0)));
    finish_command<HostAtomics>(commands.ring, 0, seen);
    EXPECT_TRUE(write_command<HostAtomics>(commands.ring, 2, command_of(2)));
  }
}

// The complete protocol: a producer with a few source buffers, a worker of several threads that
// copies them, and a peer that sees the done words and checks the bytes.
constexpr uint64_t kOperations = 1500;
constexpr uint64_t kMost = 200;

struct Scene {
  Scene(uint32_t shift, uint8_t epoch, uint64_t start)
      : commands(shift, epoch), count(uint64_t{1} << shift), first(start) {
    commands.start_at(first);
    sources.resize(count * kMost);
    targets.resize(kOperations * kMost);
    done = std::make_unique<uint64_t[]>(kOperations);
  }
  uint64_t length(uint64_t k) const { return Random(k).below(kMost + 1); }
  uint8_t byte(uint64_t k, uint64_t i) const { return static_cast<uint8_t>(k * 37 + i * 11 + 1); }

  Commands commands;
  uint64_t count;
  uint64_t first;
  std::vector<uint8_t> sources;  // one per slot: it may be refilled when the slot is free
  std::vector<uint8_t> targets;
  std::unique_ptr<uint64_t[]> done;  // one per operation
};

void produce(Scene& scene) {
  const CommandRing& ring = scene.commands.ring;
  for (uint64_t k = 0; k < kOperations + 1; ++k) {
    uint64_t at = scene.first + k;
    wait_until([&] { return fits(ring.shift, at, 1, poll<Delayed>(ring.through, ring.epoch)); });
    Command command{};
    command.kind = k == kOperations ? kCommandLeave : kCommandCopy;
    if (command.kind == kCommandCopy) {
      uint8_t* source = &scene.sources[place_of(ring.shift, at) * kMost];
      for (uint64_t i = 0; i < scene.length(k); ++i) source[i] = scene.byte(k, i);
      command.source = reinterpret_cast<uint64_t>(source);
      command.target = reinterpret_cast<uint64_t>(&scene.targets[k * kMost]);
      command.bytes = scene.length(k);
      command.done = reinterpret_cast<uint64_t>(&scene.done[k]);
      command.done_word = make_word(ring.epoch, k + 1);
    }
    EXPECT_TRUE(write_command<Delayed>(ring, at, command));
  }
}

// One thread of the worker; the first one reads the commands for all.
void work(Scene& scene, uint32_t rank, uint32_t of, Command& shared, std::barrier<>& together) {
  const CommandRing& ring = scene.commands.ring;
  for (uint64_t at = scene.first;; ++at) {
    if (rank == 0) wait_until([&] { return read_command<Delayed>(ring, at, &shared); });
    together.arrive_and_wait();
    Command command = shared;
    const auto* source = reinterpret_cast<const uint8_t*>(command.source);
    auto* target = reinterpret_cast<uint8_t*>(command.target);
    for (uint64_t i = rank; i < command.bytes; i += of) target[i] = source[i];
    together.arrive_and_wait();
    if (rank == 0) finish_command<Delayed>(ring, at, command);
    if (command.kind == kCommandLeave) return;
  }
}

void receive(Scene& scene) {
  uint64_t wrong = 0;
  for (uint64_t k = 0; k < kOperations; ++k) {
    wait_until([&] { return poll<Delayed>(&scene.done[k], scene.commands.ring.epoch) == k + 1; });
    const uint8_t* target = &scene.targets[k * kMost];
    for (uint64_t i = 0; i < scene.length(k); ++i) wrong += target[i] != scene.byte(k, i);
  }
  EXPECT_EQ(wrong, 0u);
}

class DeviceCommandsSceneTest : public ::testing::TestWithParam<std::tuple<int, int, int>> {};

TEST_P(DeviceCommandsSceneTest, ThePeerSeesTheBytesOfEachDoneWord) {
  const uint32_t shift = static_cast<uint32_t>(std::get<0>(GetParam()));
  const uint32_t workers = static_cast<uint32_t>(std::get<1>(GetParam()));
  const int start = std::get<2>(GetParam());
  Scene scene(shift, kEpochs[start], first_positions(shift)[start]);
  Command shared{};
  std::barrier<> together(workers);
  Threads threads;
  threads.start([&] { produce(scene); });
  threads.start([&] { receive(scene); });
  for (uint32_t rank = 0; rank < workers; ++rank) {
    threads.start([&, rank] { work(scene, rank, workers, shared, together); });
  }
  threads.join();
  EXPECT_EQ(poll<HostAtomics>(&scene.commands.through, scene.commands.ring.epoch),
            scene.first + kOperations + 1);
}

INSTANTIATE_TEST_SUITE_P(Scenes, DeviceCommandsSceneTest,
                         ::testing::Combine(::testing::Values(0, 1, 4), ::testing::Values(1, 2),
                                            ::testing::Values(0, 1, 3)));

}  // namespace
}  // namespace device_commands_test
