// SPDX-License-Identifier: Apache-2.0
//
// Metrics: the counted bytes and operations match the path that each request reports.
#include <map>

#include "conformance/batches.h"

namespace conformance::metrics {
namespace {

using Labels = std::vector<std::string>;

// The counters of the process.
class Reading {
 public:
  Reading() {
    auto sample = onehop::detail::sized<oh_metric_sample>();
    for (size_t i = 0; oh_metric_sample_get(i, &sample) == OH_OK; ++i) {
      auto family = onehop::detail::sized<oh_metric_family>();
      EXPECT_EQ(oh_metric_family_get(sample.family, &family), OH_OK);
      Labels labels{family.name};
      labels.insert(labels.end(), sample.labels, sample.labels + family.label_count);
      values_[labels] = {sample.value, sample.sum};
    }
  }
  uint64_t value(const Labels& labels) const { return at(labels).first; }
  double sum(const Labels& labels) const { return at(labels).second; }

 private:
  std::pair<uint64_t, double> at(const Labels& labels) const {
    auto found = values_.find(labels);
    return found == values_.end() ? std::pair<uint64_t, double>() : found->second;
  }
  std::map<Labels, std::pair<uint64_t, double>> values_;
};

// The operations and bytes of one kind by path, according to their requests.
class Expected {
 public:
  Expected(std::string direction, std::string op)
      : direction_(std::move(direction)), op_(std::move(op)) {}

  void add(const onehop::Message& message) {
    bytes_[message.path] += message.size;
    ++operations_[message.path];
  }
  // By all paths.
  void check(const Reading& now) const {
    for (int path = 0; path < OH_PATH_COUNT; ++path) {
      const std::string name = oh_path_name(static_cast<oh_path>(path));
      auto difference = [&](const std::string& metric) {
        const Labels labels{metric, direction_, name, op_};
        return now.value(labels) - before_.value(labels);
      };
      auto of = [&](const std::map<int, uint64_t>& counted) {
        auto found = counted.find(path);
        return found == counted.end() ? 0 : found->second;
      };
      EXPECT_EQ(difference("onehop_bytes_total"), of(bytes_)) << op_ << " by " << name;
      EXPECT_EQ(difference("onehop_operations_total"), of(operations_)) << op_ << " by " << name;
    }
  }

 private:
  const std::string direction_;
  const std::string op_;
  const Reading before_;
  std::map<int, uint64_t> bytes_;
  std::map<int, uint64_t> operations_;
};

const std::vector<size_t> kSizes = {8, 300, 4096, 70000, 1 << 20};
constexpr size_t kSpace = 2 << 20;

// Blocks of different lengths, one of them empty.
Blocks uneven_blocks() {
  Blocks blocks;
  for (uint64_t i = 0; i < 40; ++i) blocks.add(i * 10'000, i == 7 ? 0 : 2000 + i * 128);
  return blocks;
}

TEST_P(OneSided, MetricsAreWhatWasMoved) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(kSpace);
        buffer.fill(1);
        const Reading before;
        Expected puts("sent", "put");
        Expected gets("received", "get");
        for (size_t size : kSizes) {
          puts.add(side.peer().put(buffer.data(), remote, 0, size).wait());
          gets.add(side.peer().get(buffer.data(), remote, 0, size).wait());
        }
        const Blocks blocks = uneven_blocks();
        const onehop::Message batch = side.peer().put_batch(remote, blocks.batch(buffer)).wait();
        EXPECT_EQ(batch.size, blocks.total());
        puts.add(batch);
        gets.add(side.peer().get_batch(remote, blocks.batch(buffer)).wait());
        onehop::PreparedBatch prepared = side.peer().prepare_put(remote, blocks.batch(buffer));
        puts.add(prepared.post().wait());
        const onehop::Bytes notice(10);
        puts.add(side.peer().put(buffer.data(), remote, 0, 5000, &notice).wait());
        const Reading now;
        puts.check(now);
        gets.check(now);
        for (auto [op, count] : {std::pair("put", 2), {"get", 1}}) {
          const Labels labels{"onehop_batch_blocks", op};
          EXPECT_EQ(now.value(labels) - before.value(labels), static_cast<uint64_t>(count));
          EXPECT_EQ(now.sum(labels) - before.sum(labels), 39.0 * count);
        }
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kSpace);
        const Reading before;
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        const Labels registered{"onehop_registered_bytes"};
        EXPECT_EQ(Reading().value(registered), before.value(registered) + kSpace);
        side.tell(region.descriptor());
        side.sync();
        region.deregister();
        EXPECT_EQ(Reading().value(registered), before.value(registered));
      });
}

TEST_P(OneSided, LargeOperationsAreTimed) {
  run(
      [](Side& side) {
        onehop::RemoteRegion remote = side.peer().attach(side.hear());
        Buffer buffer = side.buffer(kSpace);
        buffer.fill(1);
        const Reading before;
        const onehop::Message put = side.peer().put(buffer.data(), remote, 0, 1 << 20).wait();
        const Reading now;
        const std::string path = oh_path_name(put.path);
        const Labels transfers{"onehop_transfer_seconds", path, "put"};
        const Labels posts{"onehop_post_seconds", path, "put"};
        EXPECT_EQ(now.value(transfers), before.value(transfers) + 1);
        EXPECT_EQ(now.value(posts), before.value(posts) + 1);
        const double took = now.sum(transfers) - before.sum(transfers);
        EXPECT_GT(took, 0);
        EXPECT_LE(now.sum(posts) - before.sum(posts), took * 1.001);
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kSpace);
        onehop::Region region = side.endpoint().register_memory(buffer.data(), buffer.size());
        side.tell(region.descriptor());
        side.sync();
      });
}

TEST_P(Messages, MetricsAreWhatWasSentAndReceived) {
  run(
      [](Side& side) {
        Buffer buffer = side.buffer(kSpace);
        buffer.fill(1);
        Expected sends("sent", "send");
        for (size_t size : kSizes) {
          sends.add(side.peer().isend(buffer.data(), size, 1).wait());
        }
        sends.check(Reading());
        side.sync();
        // Operations that were posted and have not ended.
        const Labels inflight{"onehop_inflight"};
        const uint64_t before = Reading().value(inflight);
        onehop::Request first = side.peer().irecv(buffer.data(), 100, 2);
        onehop::Request second = side.peer().irecv(buffer.data() + 1000, kSpace - 1000, 3);
        EXPECT_EQ(Reading().value(inflight), before + 2);
        side.sync();
        first.wait();
        second.wait();
        side.sync();
        EXPECT_EQ(Reading().value(inflight), before);
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kSpace);
        Expected receives("received", "recv");
        for (size_t i = 0; i < kSizes.size(); ++i) {
          receives.add(side.peer().recv(buffer.data(), buffer.size(), 1));
        }
        receives.check(Reading());
        side.sync();
        side.sync();
        side.peer().send(buffer.data(), 100, 2);
        side.peer().send(buffer.data(), 1 << 20, 3);
        side.sync();
      });
}

// A batch sent as a message: the sender writes it by a put, and the control messages about it are
// not counted.
TEST_P(Messages, MetricsOfABatchAsAMessageAreItsBytes) {
  run(
      [](Side& side) {
        Buffer buffer = side.buffer(kSpace);
        buffer.fill(1);
        const Blocks blocks = uneven_blocks();
        const Reading before;
        side.sync();
        side.peer().send_batch(blocks.of(buffer), 5);
        const Reading now;
        uint64_t put = 0;
        uint64_t timed = 0;
        for (int path = 0; path < OH_PATH_COUNT; ++path) {
          const Labels labels{"onehop_bytes_total", "sent",
                              oh_path_name(static_cast<oh_path>(path)), "put"};
          put += now.value(labels) - before.value(labels);
          const Labels times{"onehop_transfer_seconds", oh_path_name(static_cast<oh_path>(path)),
                             "put"};
          timed += now.value(times) - before.value(times);
        }
        EXPECT_EQ(put, blocks.total());
        EXPECT_EQ(timed, 1u);
        side.sync();
      },
      [](Side& side) {
        Buffer buffer = side.buffer(kSpace);
        const Blocks blocks = uneven_blocks();
        Expected receives("received", "recv");
        Expected sends("sent", "send");
        side.sync();
        receives.add(side.peer().recv_batch(blocks.of(buffer), 5));
        side.sync();
        receives.check(Reading());
        sends.check(Reading());
      });
}

TEST(MetricsText, HasEveryMetric) {
  const std::string all = onehop::metrics_text();
  auto family = onehop::detail::sized<oh_metric_family>();
  size_t count = 0;
  for (; oh_metric_family_get(count, &family) == OH_OK; ++count) {
    EXPECT_NE(all.find(std::string("# TYPE ") + family.name + " "), std::string::npos);
  }
  EXPECT_EQ(count, 12u);
  EXPECT_NE(all.find("\nonehop_peers "), std::string::npos);
  EXPECT_EQ(all.back(), '\n');
}

TEST(MetricsText, SaysHowMuchRoomItNeeds) {
  size_t size = 0;
  EXPECT_EQ(oh_metrics_text(nullptr, &size), OH_ERR_RANGE);
  onehop::Bytes text(size + 4096);  // the text may have grown
  size = text.size();
  ASSERT_EQ(oh_metrics_text(reinterpret_cast<char*>(text.data()), &size), OH_OK);
  EXPECT_EQ(text[size - 1], 0);
  EXPECT_EQ(oh_metrics_text(nullptr, nullptr), OH_ERR_INVALID);
  EXPECT_EQ(oh_metric_sample_get(0, nullptr), OH_ERR_INVALID);
  EXPECT_EQ(oh_metric_family_get(0, nullptr), OH_ERR_INVALID);
  oh_metric_sample sample{};
  EXPECT_EQ(oh_metric_sample_get(0, &sample), OH_ERR_INVALID) << "it has no struct_size";
}

}  // namespace
}  // namespace conformance::metrics
