/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Metrics: what this process has moved, how long that took, and what went wrong; over all
 * endpoints, also those that are closed. docs/metrics.md says what each metric counts.
 *
 * Purpose: oh_metrics_text() gives everything in Prometheus' text format, for a program that serves
 * or logs it; the other two calls give the same as data. Python serves it by itself where
 * ONEHOP_METRICS is set.
 *
 * Threading: any thread. Nothing here waits for an operation, and nothing is slower because it is
 * read. Counters of a process never go back; a child of fork() begins at zero.
 */
#ifndef ONEHOP_METRICS_H_
#define ONEHOP_METRICS_H_

#include "onehop/types.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * All metrics in Prometheus' text format (0.0.4), ending with a zero byte, which *size counts. The
 * text may grow between two calls: OH_ERR_RANGE says again how much room it needs.
 */
OH_API oh_status oh_metrics_text(char* text, size_t* size);

typedef enum oh_metric_type {
  OH_METRIC_COUNTER = 0,
  OH_METRIC_GAUGE = 1,
  OH_METRIC_HISTOGRAM = 2
} oh_metric_type;

/* Labels of a metric at most. */
#define OH_METRIC_LABELS 3

/* A metric; strings and arrays live as long as the library. */
typedef struct oh_metric_family {
  size_t struct_size;
  const char* name; /* "onehop_bytes_total" */
  const char* help; /* one line */
  oh_metric_type type;
  size_t label_count;
  const char* labels[OH_METRIC_LABELS]; /* names, "direction" */
  size_t bound_count;                   /* of a histogram: upper bounds of its buckets, without */
  const double* bounds;                 /* the last one, +Inf; ascending */
} oh_metric_family;
/* OH_ERR_RANGE behind the last one. */
OH_API oh_status oh_metric_family_get(size_t index, oh_metric_family* family);

/* The value of a metric for one set of labels. Arrays live until the thread reads index 0 again. */
typedef struct oh_metric_sample {
  size_t struct_size;
  size_t family;                        /* index of its metric */
  const char* labels[OH_METRIC_LABELS]; /* values, "sent", in the metric's order; else NULL */
  uint64_t value;                       /* of a histogram: how many were observed */
  double sum;                           /* of a histogram: of all that were observed */
  const uint64_t* buckets;              /* of a histogram: how many up to each bound */
} oh_metric_sample;
/*
 * Index 0 reads all metrics of the process anew for the calling thread, which the others are from.
 * OH_ERR_RANGE behind the last one.
 */
OH_API oh_status oh_metric_sample_get(size_t index, oh_metric_sample* sample);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* ONEHOP_METRICS_H_ */
