// SPDX-License-Identifier: Apache-2.0
//
// Counters, histograms, and the sum over links that come and go while another thread reads.
#include "base/metrics.h"

#include <atomic>
#include <thread>

#include "link/totals.h"
#include "unit/fake_link.h"
#include "unit/support.h"

namespace metrics_test {
namespace {

using namespace oh;

TEST(Histogram, BucketsEndAtTheirBounds) {
  EXPECT_EQ(BlockHistogram::bound(0), 1u);
  EXPECT_EQ(BlockHistogram::bound(20), uint64_t{1} << 20);
  EXPECT_EQ(BlockHistogram::bucket_of(0), 0u);
  for (size_t i = 0; i + 1 < BlockHistogram::kBuckets; ++i) {
    EXPECT_EQ(BlockHistogram::bucket_of(BlockHistogram::bound(i)), i);
    EXPECT_EQ(BlockHistogram::bucket_of(BlockHistogram::bound(i) + 1), i + 1);
  }
  EXPECT_EQ(TimeHistogram::bound(0), 1024u);
  for (size_t i = 0; i + 1 < TimeHistogram::kBuckets; ++i) {
    EXPECT_EQ(TimeHistogram::bucket_of(TimeHistogram::bound(i)), i);
    EXPECT_EQ(TimeHistogram::bucket_of(TimeHistogram::bound(i) + 1), i + 1);
  }
  EXPECT_EQ(TimeHistogram::bucket_of(UINT64_MAX), TimeHistogram::kBuckets - 1);
}

TEST(Histogram, ThreadsLoseNoObservation) {
  BlockHistogram histogram;
  constexpr uint64_t kEach = 20000;
  auto observe = [&] {
    for (uint64_t i = 1; i <= kEach; ++i) histogram.observe(i);
  };
  std::thread one(observe);
  std::thread other(observe);
  one.join();
  other.join();
  uint64_t count = 0;
  for (size_t i = 0; i < BlockHistogram::kBuckets; ++i) count += histogram.bucket(i);
  EXPECT_EQ(count, 2 * kEach);
  EXPECT_EQ(histogram.sum(), kEach * (kEach + 1));
  EXPECT_EQ(histogram.bucket(0), 2u);
  EXPECT_EQ(histogram.bucket(BlockHistogram::bucket_of(kEach)), 2 * (kEach - (1 << 14)));
}

TEST(Level, NeverShowsLessThanNothing) {
  Level level;
  level.add(10);
  level.sub(4);
  EXPECT_EQ(level.get(), 6u);
  level.reset();
  level.sub(6);
  EXPECT_EQ(level.get(), 0u);
}

TEST(Metrics, ErrorsCountByStatusAndSuccessDoesNot) {
  Metrics metrics;
  metrics.count_error(OH_OK);
  metrics.count_error(OH_AGAIN);
  metrics.count_error(OH_ERR_DEVICE);
  metrics.count_error(OH_ERR_DEVICE);
  EXPECT_EQ(metrics.errors(OH_ERR_DEVICE), 2u);
  EXPECT_EQ(metrics.errors(OH_OK), 0u);
  EXPECT_EQ(metrics.errors(OH_ERR_INVALID), 0u);
  metrics.transfer_time[0][OH_PATH_SHM].observe(5);
  metrics.reset();
  EXPECT_EQ(metrics.errors(OH_ERR_DEVICE), 0u);
  EXPECT_EQ(metrics.transfer_time[0][OH_PATH_SHM].sum(), 0u);
}

struct CountingLink final : CountedLink {
  void add_to(Stats* all) const override { all->add(stats); }
  bool is_open() const override { return open; }
  Stats stats;
  bool open = true;
};

uint64_t sent_bytes() {
  return Totals::instance().sum().stats.of(MetricOp::kPut, OH_PATH_SHM).bytes;
}

TEST(Totals, KeepWhatLinksHaveCountedThatAreGone) {
  const Totals::Sum before = Totals::instance().sum();
  {
    CountingLink link;
    Totals::instance().enter(link);
    link.stats.count(MetricOp::kPut, OH_PATH_SHM, 100);
    ++link.stats.outstanding;
    const Totals::Sum now = Totals::instance().sum();
    EXPECT_EQ(now.open, before.open + 1);
    EXPECT_EQ(now.stats.outstanding, before.stats.outstanding + 1);
    link.open = false;
    EXPECT_EQ(Totals::instance().sum().open, before.open);
    Totals::instance().leave(link);
    Totals::instance().leave(link);  // counted only once
  }
  const Totals::Sum after = Totals::instance().sum();
  const PathCount& counted = after.stats.of(MetricOp::kPut, OH_PATH_SHM);
  const PathCount& until = before.stats.of(MetricOp::kPut, OH_PATH_SHM);
  EXPECT_EQ(counted.bytes, until.bytes + 100);
  EXPECT_EQ(counted.operations, until.operations + 1);
  EXPECT_EQ(after.stats.outstanding, before.stats.outstanding);
}

TEST(Totals, NeverGoBackWhileLinksComeAndGo) {
  const uint64_t before = sent_bytes();
  constexpr uint64_t kLinks = 200;
  constexpr uint64_t kEach = 50;
  std::atomic<bool> over{false};
  std::thread links([&] {
    for (uint64_t i = 0; i < kLinks; ++i) {
      CountingLink link;
      Totals::instance().enter(link);
      for (uint64_t k = 0; k < kEach; ++k) link.stats.count(MetricOp::kPut, OH_PATH_SHM, 8);
      Totals::instance().leave(link);
    }
    over.store(true);
  });
  uint64_t last = before;
  while (!over.load()) {
    const uint64_t now = sent_bytes();
    EXPECT_GE(now, last);
    last = now;
  }
  links.join();
  EXPECT_EQ(sent_bytes(), before + kLinks * kEach * 8);
}

TEST(Link, CountsLossesByReason) {
  auto losses = [](Loss loss) { return g_metrics.losses[static_cast<size_t>(loss)].get(); };
  auto lose = [&](oh_status code, bool goodbye, Loss expected) {
    const uint64_t before = losses(expected);
    unit::FakeLink made;
    made.link.said_goodbye.store(goodbye);
    made.link.set_lost(error(code, "it has ended"));
    made.link.set_lost(error(code, "it has ended again"));
    EXPECT_EQ(losses(expected), before + 1) << oh_status_name(code);
  };
  lose(OH_ERR_PEER_LOST, true, Loss::kClosed);
  lose(OH_ERR_PEER_LOST, false, Loss::kDied);
  lose(OH_ERR_PROTOCOL, false, Loss::kProtocol);
  lose(OH_ERR_LINK, false, Loss::kFailed);
  const uint64_t closed = losses(Loss::kFailed);
  unit::FakeLink made;
  (void)made.link.set_closed();
  made.link.set_lost(error(OH_ERR_LINK, "closed from here"));
  EXPECT_EQ(losses(Loss::kFailed), closed) << "a close from here is no loss";
}

TEST(Link, TimesARequestOnceAndOnlyIfItEndedWell) {
  unit::FakeLink made;
  auto& times = g_metrics.transfer_time[static_cast<size_t>(MetricOp::kGet)][OH_PATH_STAGED];
  auto& posts = g_metrics.post_time[static_cast<size_t>(MetricOp::kGet)][OH_PATH_STAGED];
  const uint64_t before = times.sum();
  const uint64_t before_posts = posts.sum();
  Request request;
  request.kind = OpKind::kGet;
  request.path = OH_PATH_STAGED;
  request.began = 1000;
  request.posting = 30;
  made.link.observe(request, 1500);
  EXPECT_EQ(request.began, 0);
  EXPECT_EQ(times.sum(), before + 500);
  EXPECT_EQ(posts.sum(), before_posts + 30);
  request.began = 1000;
  request.status = error(OH_ERR_TIMEOUT, "too late");
  made.link.observe(request, 1500);
  EXPECT_EQ(times.sum(), before + 500);
}

TEST(Link, KnowsWhatIsOutstanding) {
  unit::FakeLink made;
  Request request;
  request.kind = OpKind::kRecv;
  made.link.note_posted(request);
  EXPECT_EQ(made.link.stats.outstanding, 1u);
  made.link.finish(request, {});
  EXPECT_EQ(made.link.stats.outstanding, 0u);
  made.link.note_posted(request);
  EXPECT_EQ(made.link.stats.outstanding, 0u) << "it has ended in the call that posted it";
}

}  // namespace
}  // namespace metrics_test
