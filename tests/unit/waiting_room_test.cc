// SPDX-License-Identifier: Apache-2.0
//
// Which guest is displaced when there are too many.
#include "control/waiting_room.h"

#include "unit/support.h"

namespace waiting_room_test {
namespace {

using namespace oh;

class WaitingRoomTest : public ::testing::Test {
 protected:
  // Returns the number of the displaced guest, or 0.
  int enter(int number, uint64_t source, int64_t until = 100) {
    auto guest = std::make_shared<int>(number);
    guests_.push_back(guest.get());
    std::shared_ptr<int> displaced = room_.enter(std::move(guest), {0, source}, until);
    return displaced ? *displaced : 0;
  }
  int late(int64_t now) {
    std::shared_ptr<int> guest = room_.take_late(now);
    return guest ? *guest : 0;
  }

  WaitingRoom<int> room_{4};
  std::vector<const int*> guests_;
};

TEST_F(WaitingRoomTest, TheOldestOfTheSourceWithTheMostGoes) {
  EXPECT_EQ(enter(1, 10), 0);
  EXPECT_EQ(enter(2, 20), 0);
  EXPECT_EQ(enter(3, 20), 0);
  EXPECT_EQ(enter(4, 30), 0);
  EXPECT_EQ(enter(5, 10), 1);  // 10 and 20 have two each: the oldest of these
  EXPECT_EQ(enter(6, 40), 2);
  // All have one each: the oldest.
  EXPECT_EQ(enter(7, 50), 3);
}

// However many a source brings, it displaces no source with fewer.
TEST_F(WaitingRoomTest, AFloodDisplacesItsOwn) {
  EXPECT_EQ(enter(1, 10), 0);
  for (int number = 2; number <= 4; ++number) EXPECT_EQ(enter(number, 20), 0);
  for (int number = 5; number <= 1000; ++number) EXPECT_EQ(enter(number, 20), number - 3);
  EXPECT_EQ(*room_.leave(guests_.front()), 1);
}

TEST_F(WaitingRoomTest, WhoLeavesMakesRoom) {
  for (int number = 1; number <= 4; ++number) EXPECT_EQ(enter(number, 10), 0);
  EXPECT_EQ(*room_.leave(guests_[2]), 3);
  EXPECT_EQ(room_.leave(guests_[2]), nullptr);
  EXPECT_EQ(enter(5, 20), 0);
  EXPECT_EQ(enter(6, 20), 1);
}

TEST_F(WaitingRoomTest, TimeIsOverInTheOrderOfDeadlines) {
  enter(1, 10, 300);
  enter(2, 10, 100);
  enter(3, 10, 200);
  EXPECT_EQ(room_.next_deadline(), 100);
  EXPECT_EQ(late(99), 0);
  EXPECT_EQ(late(250), 2);
  EXPECT_EQ(late(250), 3);
  EXPECT_EQ(late(250), 0);
  EXPECT_EQ(late(300), 1);
  EXPECT_TRUE(room_.empty());
  EXPECT_EQ(late(1000), 0);
}

}  // namespace
}  // namespace waiting_room_test
