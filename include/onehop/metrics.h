/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics of this process: traffic, durations and errors. They cover all endpoints, also closed
 * ones. docs/metrics.md defines each metric.
 *
 * Purpose: oh_metrics_text() returns everything in Prometheus' text format, for a program that
 * serves or logs it. The other two calls return the same as data. The Python package serves it over
 * HTTP if ONEHOP_METRICS is set.
 *
 * Threading: any thread. A read waits for no operation and slows none. Counters of a process never
 * decrease; a child of fork() starts at zero.
 */
#ifndef ONEHOP_METRICS_H_
#define ONEHOP_METRICS_H_

#include "onehop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * All metrics in Prometheus' text format (0.0.4), zero-terminated; *size counts the zero byte. The
 * text may grow between two calls: OH_ERR_RANGE then reports the new size.
 */
OH_API oh_status oh_metrics_text(char* text, size_t* size);

typedef enum oh_metric_type {
  OH_METRIC_COUNTER = 0,
  OH_METRIC_GAUGE = 1,
  OH_METRIC_HISTOGRAM = 2
} oh_metric_type;

/* The most labels that a metric has. */
#define OH_METRIC_LABELS 3

/* A metric. Strings and arrays live as long as the library. */
typedef struct oh_metric_family {
  size_t struct_size;
  const char* name; /* "onehop_bytes_total" */
  const char* help; /* one line */
  oh_metric_type type;
  size_t label_count;
  const char* labels[OH_METRIC_LABELS]; /* names: "direction" */
  size_t bound_count;                   /* of a histogram: its upper bounds, ascending, */
  const double* bounds;                 /* without the last one, +Inf */
} oh_metric_family;
/* Metric `index`. OH_ERR_RANGE: past the last one. */
OH_API oh_status oh_metric_family_get(size_t index, oh_metric_family* family);

/* The value of a metric for one set of labels. Arrays live until the thread reads index 0 again. */
typedef struct oh_metric_sample {
  size_t struct_size;
  size_t family;                        /* index of its metric */
  const char* labels[OH_METRIC_LABELS]; /* values ("sent"), in the metric's order; else NULL */
  uint64_t value;                       /* of a histogram: the number of observations */
  double sum;                           /* of a histogram: the sum of the observations */
  const uint64_t* buckets;              /* of a histogram: cumulative counts, one per bound */
} oh_metric_sample;
/*
 * Sample `index`. Index 0 takes a new snapshot of the process's metrics for the calling thread;
 * other indices read from that snapshot. OH_ERR_RANGE: past the last one.
 */
OH_API oh_status oh_metric_sample_get(size_t index, oh_metric_sample* sample);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_METRICS_H_ */
