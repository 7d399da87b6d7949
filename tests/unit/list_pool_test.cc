// SPDX-License-Identifier: Apache-2.0
#include <list>
#include <set>
#include <vector>

#include "base/list.h"
#include "base/pool.h"
#include "unit/support.h"

namespace list_pool_test {
namespace {

using namespace oh;

struct InOne;
struct InOther;
struct Item : ListNode<InOne>, ListNode<InOther> {
  int number = 0;
};
using One = List<Item, InOne>;
using Other = List<Item, InOther>;

std::vector<int> numbers(const One& list) {
  std::vector<int> all;
  for (Item* item = list.front(); item; item = list.next(item)) all.push_back(item->number);
  std::vector<int> backwards;
  for (Item* item = list.back(); item; item = list.previous(item)) {
    backwards.insert(backwards.begin(), item->number);
  }
  EXPECT_EQ(all, backwards);
  EXPECT_EQ(all.size(), list.size());
  return all;
}

TEST(ListTest, KeepsTheOrder) {
  Item items[5];
  for (int i = 0; i < 5; ++i) items[i].number = i;
  One list;
  EXPECT_TRUE(list.empty());
  EXPECT_EQ(list.front(), nullptr);
  EXPECT_EQ(list.pop_front(), nullptr);
  list.push_back(&items[1]);
  list.push_front(&items[0]);
  list.push_back(&items[4]);
  list.insert_before(&items[4], &items[2]);
  list.insert_before(nullptr, &items[3]);
  EXPECT_THAT(numbers(list), ::testing::ElementsAre(0, 1, 2, 4, 3));
  list.erase(&items[2]);
  list.erase(&items[0]);
  list.erase(&items[3]);
  EXPECT_THAT(numbers(list), ::testing::ElementsAre(1, 4));
  EXPECT_EQ(list.pop_front(), &items[1]);
  EXPECT_EQ(list.pop_front(), &items[4]);
  EXPECT_TRUE(list.empty());
}

TEST(ListTest, AnItemIsInTwoListsAtOnce) {
  Item item;
  One one;
  Other other;
  one.push_back(&item);
  other.push_back(&item);
  EXPECT_TRUE(static_cast<ListNode<InOne>&>(item).linked());
  one.erase(&item);
  EXPECT_FALSE(static_cast<ListNode<InOne>&>(item).linked());
  EXPECT_TRUE(static_cast<ListNode<InOther>&>(item).linked());
  EXPECT_EQ(other.pop_front(), &item);
}

TEST(ListTest, DoesWhatAnOrdinaryListDoes) {
  unit::Random random(7);
  std::vector<Item> items(50);
  for (int i = 0; i < 50; ++i) items[static_cast<size_t>(i)].number = i;
  One list;
  std::list<int> model;
  for (int step = 0; step < 20000; ++step) {
    Item& item = items[random.below(items.size())];
    if (static_cast<ListNode<InOne>&>(item).linked()) {
      list.erase(&item);
      model.remove(item.number);
    } else if (random.below(2)) {
      list.push_back(&item);
      model.push_back(item.number);
    } else {
      list.push_front(&item);
      model.push_front(item.number);
    }
    if (step % 100 == 0) {
      EXPECT_EQ(numbers(list), std::vector<int>(model.begin(), model.end()));
    }
  }
}

struct Counted {
  static inline int alive = 0;
  Counted() { ++alive; }
  ~Counted() { --alive; }
  int value = 0;
};

TEST(PoolTest, HandsOutDistinctObjectsThatStay) {
  {
    Pool<Counted> pool;
    std::vector<Counted*> all;
    std::set<Counted*> distinct;
    for (int i = 0; i < 1000; ++i) {
      all.push_back(pool.acquire());
      all.back()->value = i;
      distinct.insert(all.back());
    }
    EXPECT_EQ(distinct.size(), 1000u);
    EXPECT_EQ(pool.in_use(), 1000u);
    for (int i = 0; i < 1000; ++i) EXPECT_EQ(all[static_cast<size_t>(i)]->value, i);
    for (Counted* object : all) pool.release(object);
    EXPECT_EQ(pool.in_use(), 0u);
    int made = Counted::alive;
    // The working set has been allocated: nothing more is created.
    for (int round = 0; round < 10; ++round) {
      std::vector<Counted*> again;
      for (int i = 0; i < 1000; ++i) {
        again.push_back(pool.acquire());
        EXPECT_EQ(distinct.count(again.back()), 1u);
      }
      for (Counted* object : again) pool.release(object);
    }
    EXPECT_EQ(Counted::alive, made);
  }
  EXPECT_EQ(Counted::alive, 0);
}

}  // namespace
}  // namespace list_pool_test
