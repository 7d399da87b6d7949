// SPDX-License-Identifier: Apache-2.0
//
// The metrics of the process.
#include <nanobind/stl/string.h>

#include <limits>
#include <vector>

#include "endpoint.h"
#include "errors.h"

namespace onehop::python {
namespace {

// {upper bound: cumulative count}, with math.inf for all.
nb::dict buckets_of(const oh_metric_family& family, const oh_metric_sample& sample) {
  nb::dict buckets;
  for (size_t i = 0; i < family.bound_count; ++i) {
    buckets[nb::float_(family.bounds[i])] = sample.buckets[i];
  }
  buckets[nb::float_(std::numeric_limits<double>::infinity())] = sample.value;
  return buckets;
}

nb::object value_of(const oh_metric_family& family, const oh_metric_sample& sample) {
  if (family.type != OH_METRIC_HISTOGRAM) return nb::int_(sample.value);
  nb::dict value;
  value["count"] = sample.value;
  value["sum"] = sample.sum;
  value["buckets"] = buckets_of(family, sample);
  return value;
}

// Stores a value under its labels, in nested dicts.
void place(nb::dict metrics, const oh_metric_family& family, const oh_metric_sample& sample) {
  nb::dict inner = std::move(metrics);
  nb::object key = nb::str(family.name);
  for (size_t i = 0; i < family.label_count; ++i) {
    if (!inner.contains(key)) inner[key] = nb::dict();
    inner = nb::cast<nb::dict>(inner[key]);
    key = nb::str(sample.labels[i]);
  }
  inner[key] = value_of(family, sample);
}

nb::dict metrics() {
  nb::dict all;
  std::vector<oh_metric_family> families;
  for (auto family = detail::sized<oh_metric_family>();
       oh_metric_family_get(families.size(), &family) == OH_OK;) {
    families.push_back(family);
    if (family.label_count > 0) all[family.name] = nb::dict();
  }
  auto sample = detail::sized<oh_metric_sample>();
  for (size_t i = 0; oh_metric_sample_get(i, &sample) == OH_OK; ++i) {
    place(all, families[sample.family], sample);
  }
  return all;
}

}  // namespace

void bind_metrics(nb::module_& module) {
  module.def(
      "metrics", metrics, nb::sig("def metrics() -> dict[str, typing.Any]"),
      "What this process has moved, how long that took, and what failed.\n\n"
      "A dict by the name of the metric, then by the values of its labels, in the order\n"
      "of docs/metrics.md:\n"
      "`metrics()[\"onehop_bytes_total\"][\"sent\"][\"shm\"][\"put\"]`. Counters and gauges are\n"
      "ints. A histogram is a dict of `count`, `sum` (seconds, or blocks) and\n"
      "`buckets`. `buckets` maps each upper bound, the last one `math.inf`, to the\n"
      "number of observations that are not above it. Paths that have carried nothing\n"
      "are omitted; all statuses and reasons are present.\n\n"
      "Counters cover all endpoints, closed ones too, and never decrease. A child of\n"
      "fork() starts at zero.");
  module.def("prometheus", metrics_text,
             "The same as `metrics()` in Prometheus' text format, version 0.0.4. If the\n"
             "environment has ONEHOP_METRICS=HOST:PORT, it is served as /metrics once onehop\n"
             "is imported.");
}

}  // namespace onehop::python
