// SPDX-License-Identifier: Apache-2.0
//
// The metrics of the process, as samples and in Prometheus' text format.
#include <algorithm>
#include <array>
#include <charconv>
#include <span>
#include <vector>

#include "capi/handles.h"
#include "link/totals.h"

using namespace oh;  // NOLINT: the C API is a thin wrapper of this namespace

namespace oh {
namespace {

enum Family : size_t {
  kBytes,
  kOperations,
  kTransferSeconds,
  kPostSeconds,
  kBatchBlocks,
  kErrors,
  kPeerLost,
  kFallback,
  kPeers,
  kInflight,
  kRegisteredBytes,
  kImportedBytes,
};

// Upper bounds of the buckets, in the unit of the metric.
template <typename Kind, size_t... I>
constexpr std::array<double, sizeof...(I)> bounds_of(double per_unit, std::index_sequence<I...>) {
  return {static_cast<double>(Kind::bound(I)) / per_unit...};
}
constexpr double kNsPerSecond = 1e9;
constexpr auto kTimes =
    bounds_of<TimeHistogram>(kNsPerSecond, std::make_index_sequence<TimeHistogram::kBuckets - 1>());
constexpr auto kBlocks =
    bounds_of<BlockHistogram>(1, std::make_index_sequence<BlockHistogram::kBuckets - 1>());

struct FamilyEntry {
  const char* name;
  const char* help;
  oh_metric_type type = OH_METRIC_GAUGE;
  std::array<const char*, OH_METRIC_LABELS> labels = {};
  std::span<const double> bounds = {};

  size_t label_count() const {
    return static_cast<size_t>(
        std::count_if(labels.begin(), labels.end(), [](const char* label) { return label; }));
  }
};

constexpr FamilyEntry kFamilies[] = {
    {"onehop_bytes_total",
     "Bytes of operations of this process that have ended well.",
     OH_METRIC_COUNTER,
     {"direction", "path", "op"}},
    {"onehop_operations_total",
     "Operations of this process that have ended well; a batch is one.",
     OH_METRIC_COUNTER,
     {"direction", "path", "op"}},
    {"onehop_transfer_seconds",
     "Time from the post of an operation to its end.",
     OH_METRIC_HISTOGRAM,
     {"path", "op"},
     kTimes},
    {"onehop_post_seconds",
     "Time that the call took which posted an operation.",
     OH_METRIC_HISTOGRAM,
     {"path", "op"},
     kTimes},
    {"onehop_batch_blocks", "Blocks of a batch.", OH_METRIC_HISTOGRAM, {"op"}, kBlocks},
    {"onehop_errors_total",
     "Calls that returned an error to the program.",
     OH_METRIC_COUNTER,
     {"status"}},
    {"onehop_peer_lost_total",
     "Links that have ended without a close from here.",
     OH_METRIC_COUNTER,
     {"reason"}},
    {"onehop_fallback_total",
     "Links and messages that took a slower way than their kind can.",
     OH_METRIC_COUNTER,
     {"reason"}},
    {"onehop_peers", "Open links."},
    {"onehop_inflight", "Operations that were posted and have not ended."},
    {"onehop_registered_bytes", "Bytes in regions of this process."},
    {"onehop_imported_bytes", "Bytes of other processes' memory that are mapped here."},
};

struct Sample {
  Family family;
  std::array<const char*, OH_METRIC_LABELS> labels = {};
  uint64_t value = 0;
  double sum = 0;
  std::vector<uint64_t> buckets = {};
};

template <typename Kind>
Sample sample_of(Family family, std::array<const char*, OH_METRIC_LABELS> labels,
                 const Kind& histogram, double per_unit) {
  Sample sample{family, labels};
  for (size_t i = 0; i < Kind::kBuckets; ++i) {
    sample.value += histogram.bucket(i);
    if (i + 1 < Kind::kBuckets) sample.buckets.push_back(sample.value);
  }
  sample.sum = static_cast<double>(histogram.sum()) / per_unit;
  return sample;
}

// Visits every pair of operation and path.
template <typename Visit>
void for_each_way(Visit visit) {
  for (size_t op = 0; op < kMetricOps; ++op) {
    for (int path = 0; path < OH_PATH_COUNT; ++path) {
      visit(static_cast<MetricOp>(op), static_cast<oh_path>(path));
    }
  }
}

void add_counts(const Stats& stats, Family family, Tally PathCount::* number,
                std::vector<Sample>* samples) {
  for_each_way([&](MetricOp op, oh_path path) {
    const PathCount& counted = stats.of(op, path);
    if (counted.operations == 0) return;
    samples->push_back({family,
                        {is_outward(op) ? "sent" : "received", oh_path_name(path),
                         kMetricOpNames[static_cast<size_t>(op)]},
                        counted.*number});
  });
}

void add_times(const std::array<Metrics::ByPath, kMetricOps>& times, Family family,
               std::vector<Sample>* samples) {
  for_each_way([&](MetricOp op, oh_path path) {
    const auto index = static_cast<size_t>(op);
    Sample sample = sample_of(family, {oh_path_name(path), kMetricOpNames[index]},
                              times[index][path], kNsPerSecond);
    if (sample.value > 0) samples->push_back(std::move(sample));
  });
}

void add_errors(std::vector<Sample>* samples) {
#define OH_ERROR_SAMPLE(name, value, scope, text) \
  if ((value) < 0) samples->push_back({kErrors, {#name}, g_metrics.errors(name)});
  OH_STATUS_LIST(OH_ERROR_SAMPLE)
#undef OH_ERROR_SAMPLE
}

void add_reasons(const Stats& stats, std::vector<Sample>* samples) {
  for (size_t i = 0; i < kLosses; ++i) {
    samples->push_back({kPeerLost, {kLossNames[i]}, g_metrics.losses[i].get()});
  }
  for (size_t i = 0; i < kFallbacks; ++i) {
    uint64_t count = g_metrics.fallbacks[i].get();
    if (static_cast<Fallback>(i) == Fallback::kNoCredit) count += stats.out_of_credit;
    if (static_cast<Fallback>(i) == Fallback::kStreamStaged) count += stats.stream_staged;
    samples->push_back({kFallback, {kFallbackNames[i]}, count});
  }
}

// Returns the current value of every metric, ordered by family.
std::vector<Sample> read_samples() {
  const Totals::Sum sum = Totals::instance().sum();
  std::vector<Sample> samples;
  add_counts(sum.stats, kBytes, &PathCount::bytes, &samples);
  add_counts(sum.stats, kOperations, &PathCount::operations, &samples);
  add_times(g_metrics.transfer_time, kTransferSeconds, &samples);
  add_times(g_metrics.post_time, kPostSeconds, &samples);
  for (MetricOp op : {MetricOp::kPut, MetricOp::kGet}) {
    const auto index = static_cast<size_t>(op);
    samples.push_back(
        sample_of(kBatchBlocks, {kMetricOpNames[index]}, g_metrics.batch_blocks[index], 1));
  }
  add_errors(&samples);
  add_reasons(sum.stats, &samples);
  samples.push_back({kPeers, {}, sum.open});
  samples.push_back({kInflight, {}, sum.stats.outstanding});
  samples.push_back({kRegisteredBytes, {}, g_metrics.registered_bytes.get()});
  samples.push_back({kImportedBytes, {}, g_metrics.imported_bytes.get()});
  return samples;
}

// Formats the labels. `le`, the label of histogram buckets, comes last; empty: none.
std::string labels_text(const Sample& sample, const std::string& le) {
  const FamilyEntry& family = kFamilies[sample.family];
  std::string text;
  for (size_t i = 0; i < family.label_count(); ++i) {
    text += strf("%s%s=\"%s\"", text.empty() ? "" : ",", family.labels[i], sample.labels[i]);
  }
  if (!le.empty()) text += strf("%sle=\"%s\"", text.empty() ? "" : ",", le.c_str());
  return text.empty() ? text : "{" + text + "}";
}

// The shortest text that parses to the same number.
std::string number_text(double value) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof(text), value).ptr};
}

std::string line(const std::string& name, const std::string& labels, uint64_t value) {
  return strf("%s%s %llu\n", name.c_str(), labels.c_str(), static_cast<unsigned long long>(value));
}

std::string histogram_text(const Sample& sample) {
  const FamilyEntry& family = kFamilies[sample.family];
  const std::string name = family.name;
  std::string text;
  for (size_t i = 0; i < sample.buckets.size(); ++i) {
    const std::string labels = labels_text(sample, number_text(family.bounds[i]));
    text += line(name + "_bucket", labels, sample.buckets[i]);
  }
  const std::string labels = labels_text(sample, "");
  text += line(name + "_bucket", labels_text(sample, "+Inf"), sample.value);
  text += strf("%s_sum%s %s\n", name.c_str(), labels.c_str(), number_text(sample.sum).c_str());
  return text + line(name + "_count", labels, sample.value);
}

std::string metrics_text() {
  static constexpr const char* kTypes[] = {"counter", "gauge", "histogram"};
  const std::vector<Sample> samples = read_samples();
  std::string text;
  auto sample = samples.begin();
  for (size_t index = 0; index < std::size(kFamilies); ++index) {
    const FamilyEntry& family = kFamilies[index];
    text += strf("# HELP %s %s\n# TYPE %s %s\n", family.name, family.help, family.name,
                 kTypes[family.type]);
    for (; sample != samples.end() && sample->family == index; ++sample) {
      text += family.type == OH_METRIC_HISTOGRAM
                  ? histogram_text(*sample)
                  : line(family.name, labels_text(*sample, ""), sample->value);
    }
  }
  return text;
}

}  // namespace
}  // namespace oh

extern "C" {

oh_status oh_metrics_text(char* text, size_t* size) {
  OH_CHECK_ARGUMENT(size);
  const std::string all = metrics_text();
  return answer(
      copy_out({reinterpret_cast<const uint8_t*>(all.c_str()), all.size() + 1}, text, size));
}

oh_status oh_metric_family_get(size_t index, oh_metric_family* family) {
  OH_CHECK_ARGUMENT(family);
  if (index >= std::size(kFamilies)) {
    return answer(error(OH_ERR_RANGE, "there are %zu metrics", std::size(kFamilies)));
  }
  const FamilyEntry& found = kFamilies[index];
  oh_metric_family value{};
  value.name = found.name;
  value.help = found.help;
  value.type = found.type;
  value.label_count = found.label_count();
  std::copy(found.labels.begin(), found.labels.end(), value.labels);
  value.bound_count = found.bounds.size();
  value.bounds = found.bounds.empty() ? nullptr : found.bounds.data();
  return report(write_out(value, family));
}

oh_status oh_metric_sample_get(size_t index, oh_metric_sample* sample) {
  OH_CHECK_ARGUMENT(sample);
  thread_local std::vector<Sample> samples;
  if (index == 0) samples = read_samples();
  if (index >= samples.size()) {
    return answer(error(OH_ERR_RANGE, "there are %zu samples", samples.size()));
  }
  const Sample& found = samples[index];
  oh_metric_sample value{};
  value.family = found.family;
  std::copy(found.labels.begin(), found.labels.end(), value.labels);
  value.value = found.value;
  value.sum = found.sum;
  value.buckets = found.buckets.empty() ? nullptr : found.buckets.data();
  return report(write_out(value, sample));
}

}  // extern "C"
