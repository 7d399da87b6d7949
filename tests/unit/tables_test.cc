// SPDX-License-Identifier: Apache-2.0
//
// The look-up tables of a peer: tags, names of operations, any-source receives, regions.
#include <map>
#include <set>

#include "base/tag_table.h"
#include "link/op_table.h"
#include "link/regions.h"
#include "message/any_source.h"
#include "unit/support.h"

namespace tables_test {
namespace {

using namespace oh;
using unit::fails_with;
using unit::is_ok;

struct Entry {
  uint64_t tag = 0;
  Entry* next_in_bucket = nullptr;
  uint64_t value = 0;
  void reset() { value = 0; }
  bool idle() const { return value == 0; }
};

TEST(TagTableTest, FindsWhatWasPutThere) {
  TagTable<Entry> table;
  EXPECT_EQ(table.find(0), nullptr);
  Entry& zero = table.get(0);
  EXPECT_EQ(&table.get(0), &zero);
  EXPECT_EQ(table.find(0), &zero);
  EXPECT_EQ(table.find(UINT64_MAX), nullptr);
  EXPECT_EQ(table.get(UINT64_MAX).tag, UINT64_MAX);
  EXPECT_EQ(table.size(), 2u);
}

TEST(TagTableTest, DoesWhatAMapDoes) {
  TagTable<Entry> table;
  std::map<uint64_t, uint64_t> model;
  unit::Random random(11);
  for (int step = 0; step < 50000; ++step) {
    // Tags that are close, that share their low bits, and that share their high bits.
    uint64_t tag = random.below(300) << (random.below(3) * 24);
    if (random.below(4) == 0) {
      Entry* entry = table.find(tag);
      ASSERT_EQ(entry ? entry->value : 0, model.count(tag) ? model[tag] : 0);
    } else {
      Entry& entry = table.get(tag);
      ASSERT_EQ(entry.tag, tag);
      ASSERT_EQ(entry.value, model[tag]);
      model[tag] = entry.value = random.below(3);
    }
    if (step % 5000 == 4999) {
      table.drop_idle();
      std::erase_if(model, [](const auto& item) { return item.second == 0; });
      ASSERT_EQ(table.size(), model.size());
      std::set<uint64_t> seen;
      table.for_each([&](Entry& entry) { EXPECT_TRUE(seen.insert(entry.tag).second); });
      ASSERT_EQ(seen.size(), model.size());
    }
  }
}

TEST(TagTableTest, EntriesKeepTheirPlaceWhileItGrows) {
  TagTable<Entry> table;
  std::vector<Entry*> entries;
  for (uint64_t tag = 0; tag < 5000; ++tag) {
    entries.push_back(&table.get(tag));
    entries.back()->value = tag;
  }
  for (uint64_t tag = 0; tag < 5000; ++tag) {
    EXPECT_EQ(table.find(tag), entries[tag]);
    EXPECT_EQ(entries[tag]->value, tag);
  }
}

TEST(OpTableTest, NamesFindTheirItemUntilItIsRemoved) {
  OpTable<int> table;
  int items[3] = {};
  uint64_t ops[3];
  for (int i = 0; i < 3; ++i) {
    ops[i] = table.add(&items[i]);
    EXPECT_NE(ops[i], 0u);
  }
  for (int i = 0; i < 3; ++i) EXPECT_EQ(table.find(ops[i]), &items[i]);
  table.remove(ops[1]);
  EXPECT_EQ(table.find(ops[1]), nullptr);
  table.remove(ops[1]);
  // The index is reused, the name is not.
  uint64_t again = table.add(&items[1]);
  EXPECT_EQ(static_cast<uint32_t>(again), static_cast<uint32_t>(ops[1]));
  EXPECT_NE(again, ops[1]);
  EXPECT_EQ(table.find(ops[1]), nullptr);
  table.remove(ops[1]);
  EXPECT_EQ(table.find(again), &items[1]);
}

TEST(OpTableTest, InventedNamesFindNothing) {
  OpTable<int> table;
  EXPECT_EQ(table.find(0), nullptr);
  EXPECT_EQ(table.find(UINT64_MAX), nullptr);
  table.remove(12345);
  int item = 0;
  uint64_t op = table.add(&item);
  for (int bit = 0; bit < 64; ++bit) EXPECT_EQ(table.find(op ^ uint64_t{1} << bit), nullptr) << bit;
}

TEST(OpTableTest, VisitsEachItemAndLetsItGo) {
  OpTable<uint64_t> table;
  std::vector<uint64_t> items(100);
  for (uint64_t& item : items) item = table.add(&item);
  size_t visited = 0;
  table.for_each([&](uint64_t* op) {
    ++visited;
    table.remove(*op);
  });
  EXPECT_EQ(visited, 100u);
  table.for_each([&](uint64_t*) { ADD_FAILURE(); });
}

TEST(AnySourceTest, TheFirstThatMatchesIsTaken) {
  AnySource source;
  Request one;
  Request any;
  Request two;
  one.tag = 1;
  any.tag = OH_ANY_TAG;
  two.tag = 1;
  for (Request* request : {&one, &any, &two}) source.post(request);
  Peer* peer = reinterpret_cast<Peer*>(0x1000);  // never dereferenced
  EXPECT_TRUE(source.may_match(1));
  EXPECT_TRUE(source.may_match(9));
  EXPECT_EQ(source.take(9, nullptr, UINT64_MAX, peer), &any);
  EXPECT_EQ(source.peer_of(&any), peer);
  EXPECT_FALSE(source.may_match(9));
  EXPECT_EQ(source.take(1, nullptr, UINT64_MAX, peer), &one);
  // The message was withdrawn: the receive returns to its place, before the others.
  source.restore(&any);
  source.restore(&one);
  EXPECT_EQ(source.peer_of(&one), nullptr);
  EXPECT_EQ(source.take(1, nullptr, UINT64_MAX, peer), &one);
  EXPECT_EQ(source.take(1, nullptr, UINT64_MAX, peer), &any);
  EXPECT_EQ(source.take(1, nullptr, UINT64_MAX, peer), &two);
  EXPECT_EQ(source.take(1, nullptr, UINT64_MAX, peer), nullptr);
  EXPECT_TRUE(source.empty());
}

TEST(AnySourceTest, AReceiveThatWasPostedEarlierGoesFirst) {
  AnySource source;
  PostOrder before{source.era(), 1};
  Request request;
  request.tag = 5;
  source.post(&request);
  PostOrder after{source.era(), 1};
  EXPECT_EQ(source.take(5, &before, UINT64_MAX, nullptr), nullptr);
  EXPECT_EQ(source.take(5, &after, UINT64_MAX, nullptr), &request);
}

TEST(AnySourceTest, IsTakenBackUnlessAMessageWasFaster) {
  AnySource source;
  Request request;
  source.post(&request);
  EXPECT_TRUE(source.take(&request));
  EXPECT_TRUE(source.empty());
  source.post(&request);
  EXPECT_EQ(source.take(0, nullptr, UINT64_MAX, reinterpret_cast<Peer*>(0x1000)), &request);
  EXPECT_FALSE(source.take(&request));
  source.close([](Request*) { ADD_FAILURE() << "it is with its peer"; });
}

TEST(AnySourceTest, NothingIsPostedOnceItIsClosed) {
  AnySource source;
  Request request;
  ASSERT_TRUE(source.post(&request));
  Request* ended = nullptr;
  source.close([&](Request* one) { ended = one; });
  EXPECT_EQ(ended, &request);
  EXPECT_FALSE(source.take(&request));
  EXPECT_FALSE(source.post(&request));
  EXPECT_TRUE(source.empty());
}

// A new message must not match a receive to which the peer has not offered its older messages.
TEST(AnySourceTest, OnlyReceivesOfAnEraAreTaken) {
  AnySource source;
  Request old;
  Request fresh;
  old.tag = fresh.tag = 1;
  Peer* peer = reinterpret_cast<Peer*>(0x1000);
  source.post(&old);
  const uint64_t offered = source.era();
  source.post(&fresh);
  auto all = [](uint64_t) { return true; };
  auto none = [](uint64_t) { return false; };
  EXPECT_EQ(source.take(1, nullptr, offered, peer), &old);
  EXPECT_EQ(source.take(1, nullptr, offered, peer), nullptr);
  EXPECT_EQ(source.take_new(offered, none, peer), nullptr);
  // A returned receive has its former place, and must be offered messages again.
  source.restore(&old);
  EXPECT_EQ(source.take(1, nullptr, offered, peer), nullptr);
  EXPECT_EQ(source.take_new(offered, all, peer), &old);
  EXPECT_EQ(source.take_new(offered, all, peer), &fresh);
  EXPECT_EQ(source.take_new(offered, all, peer), nullptr);
  EXPECT_TRUE(source.empty());
}

class RegionsTest : public ::testing::Test {
 protected:
  RegionsTest() : page_(std::move(*ControlPage::create())), table_(page_) {}
  ControlPage page_;
  RegionTable table_;
  uint8_t memory_[100] = {};
};

TEST_F(RegionsTest, AreOnTheControlPageWhileTheyAreValid) {
  auto region = table_.add(memory_, 100, nullptr);
  ASSERT_TRUE(is_ok(region));
  EXPECT_EQ(page_.region((*region)->index).load(), (*region)->version);
  EXPECT_EQ(table_.find((*region)->index, (*region)->version), *region);
  EXPECT_EQ(table_.find((*region)->index, (*region)->version + 1), nullptr);
  EXPECT_EQ(table_.find((*region)->index + 1, (*region)->version), nullptr);
  EXPECT_EQ(table_.find(UINT32_MAX, 0), nullptr);
  table_.retire(**region);
  EXPECT_EQ(page_.region((*region)->index).load(), 0u);
  EXPECT_EQ(table_.find((*region)->index, (*region)->version), nullptr);
  EXPECT_EQ(table_.size(), 0u);
}

TEST_F(RegionsTest, AVersionIsNeverUsedAgain) {
  auto first = table_.add(memory_, 100, nullptr);
  table_.retire(**first);
  auto second = table_.add(memory_, 100, nullptr);
  ASSERT_TRUE(is_ok(second));
  EXPECT_EQ((*second)->index, (*first)->index);
  EXPECT_NE((*second)->version, (*first)->version);
  // The previous region cannot remove the entry.
  table_.retire(**first);
  EXPECT_EQ(table_.find((*second)->index, (*second)->version), *second);
  EXPECT_EQ(table_.size(), 1u);
}

TEST_F(RegionsTest, KnowTheirSharedBlock) {
  auto block = SharedHeap::instance().allocate(4096);
  ASSERT_TRUE(is_ok(block));
  uint8_t* data = (*block)->mapping.data();
  EXPECT_EQ((*table_.add(data + 10, 4000, nullptr))->block, *block);
  EXPECT_EQ((*table_.add(memory_, 100, nullptr))->block, nullptr);
  EXPECT_TRUE(is_ok(SharedHeap::instance().free(data)));
}

TEST_F(RegionsTest, RefuseNothing) {
  EXPECT_TRUE(
      fails_with(table_.add(nullptr, 100, nullptr), OH_ERR_INVALID, "cannot register 100 bytes"));
  EXPECT_TRUE(fails_with(table_.add(memory_, 0, nullptr), OH_ERR_INVALID));
}

TEST(SliceTest, FitsOnlyWithin) {
  EXPECT_TRUE(slice_fits(0, 0, 0));
  EXPECT_TRUE(slice_fits(0, 10, 10));
  EXPECT_TRUE(slice_fits(10, 0, 10));
  EXPECT_TRUE(slice_fits(3, 7, 10));
  EXPECT_FALSE(slice_fits(3, 8, 10));
  EXPECT_FALSE(slice_fits(11, 0, 10));
  EXPECT_FALSE(slice_fits(UINT64_MAX, 1, 10));
  EXPECT_FALSE(slice_fits(1, UINT64_MAX, 10));
  EXPECT_FALSE(slice_fits(UINT64_MAX, UINT64_MAX, UINT64_MAX - 1));
}

RegionDescriptor sample_descriptor() {
  RegionDescriptor descriptor;
  descriptor.process[0] = 1;
  descriptor.endpoint[0] = 2;
  descriptor.index = 3;
  descriptor.version = 4;
  descriptor.record.base = 5;
  descriptor.record.length = 6;
  descriptor.record.chunks.push_back({0, 6, ChunkKind::kShared, {7, 0, 0, 0}});
  return descriptor;
}

TEST(RegionDescriptorTest, GoesRoundAndIsCheckedAtEveryByte) {
  Bytes bytes = sample_descriptor().encode();
  auto back = RegionDescriptor::decode(bytes);
  ASSERT_TRUE(is_ok(back));
  EXPECT_EQ(back->process, sample_descriptor().process);
  EXPECT_EQ(back->endpoint, sample_descriptor().endpoint);
  EXPECT_EQ(back->index, 3u);
  EXPECT_EQ(back->version, 4u);
  EXPECT_EQ(back->record.chunks.size(), 1u);
  EXPECT_EQ(back->encode(), bytes);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(fails_with(RegionDescriptor::decode(ByteView(bytes).first(size)), OH_ERR_INVALID));
  }
  bytes.push_back(0);
  EXPECT_TRUE(fails_with(RegionDescriptor::decode(bytes), OH_ERR_INVALID));
  bytes.pop_back();
  bytes[4] += 1;
  EXPECT_TRUE(fails_with(RegionDescriptor::decode(bytes), OH_ERR_VERSION,
                         "the owner of this region descriptor, unless its bytes were altered, "
                         "speaks wire version 2.0, this build 1.0: use releases"));
}

TEST(RegionDescriptorTest, SaysWhetherTheRegionIsReadOnly) {
  RegionDescriptor descriptor = sample_descriptor();
  EXPECT_FALSE(RegionDescriptor::decode(descriptor.encode())->read_only);
  descriptor.read_only = true;
  const Bytes bytes = descriptor.encode();
  EXPECT_TRUE(RegionDescriptor::decode(bytes)->read_only);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_TRUE(fails_with(RegionDescriptor::decode(ByteView(bytes).first(size)), OH_ERR_INVALID));
  }
}

TEST(RegionDescriptorTest, NamesARegionThatCouldBe) {
  RegionDescriptor descriptor = sample_descriptor();
  descriptor.index = ControlPage::kMaxRegions;
  EXPECT_TRUE(fails_with(RegionDescriptor::decode(descriptor.encode()), OH_ERR_INVALID));
  descriptor = sample_descriptor();
  descriptor.version = 0;
  EXPECT_TRUE(fails_with(RegionDescriptor::decode(descriptor.encode()), OH_ERR_INVALID));
}

}  // namespace
}  // namespace tables_test
