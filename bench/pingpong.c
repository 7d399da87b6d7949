/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The timed loops of pingpong.h, and the check of what they moved.
 *
 * latency: one way, half of a round trip, p50 and p99. bandwidth: rank 0 sends, a window of
 * messages in flight; rank 1 confirms each half of a window, so that the other half is under way
 * meanwhile.
 *
 * What is timed has the same bytes in each round of a slot and is not touched; only the last round
 * is compared. Behind it comes one window of messages with fresh bytes, which are compared whole.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#endif

#include "pingpong.h"

static uint64_t wrong;
static uint64_t checked;

static void barrier(const struct side* side) {
  char here = 0;
  send_all(side->socket, &here, 1);
  receive_all(side->socket, &here, 1);
}

/* ---- bytes ---- */

static uint8_t byte_at(uint64_t round, int rank, size_t position) {
  uint64_t mixed = (position + 1) * 0x9e3779b97f4a7c15u + round * 0xc2b2ae3d27d4eb4fu;
  return (uint8_t)((mixed >> 32) + (unsigned)rank);
}

static uint8_t* slot(const struct side* side, uint8_t* slots, uint64_t i) {
  return slots + i % side->spec.window * side->spec.size;
}

static void fill(const struct side* side, uint64_t i, uint64_t round) {
  uint8_t* at = slot(side, side->out, i);
  for (size_t k = 0; k < side->spec.size; ++k) at[k] = byte_at(round, side->rank, k);
  if (side->spec.corrupt && side->spec.size > 0) at[side->spec.size / 2] ^= 1;
}

/* Compares, and poisons what was compared. */
static void compare(const struct side* side, uint64_t i, uint64_t round) {
  uint8_t* at = slot(side, side->in, i);
  for (size_t k = 0; k < side->spec.size; ++k) {
    wrong += at[k] != byte_at(round, 1 - side->rank, k);
    at[k] = (uint8_t)~at[k];
  }
  ++checked;
}

/* ---- time ---- */

static uint64_t nanoseconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* The system's clock takes a quarter of the time of a message through shared memory. */
static uint64_t ticks(void) {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return nanoseconds();
#endif
}

static double ticks_per_us(void) {
  uint64_t begin = nanoseconds();
  uint64_t first = ticks();
  uint64_t end = begin;
  while (end - begin < 20000000u) end = nanoseconds();
  return (double)(ticks() - first) * 1000.0 / (double)(end - begin);
}

/* ---- the loops; `first` is the number of the first message ---- */

static void latency(const struct side* side, uint64_t first, uint64_t count, int fresh,
                    uint64_t* samples) {
  for (uint64_t i = first; i < first + count; ++i) {
    if (fresh) fill(side, i, i);
    uint64_t begin = ticks();
    if (side->rank == 0) {
      link_send(i);
      link_sent(i);
      link_receive(i);
    } else {
      link_receive(i);
      link_send(i);
      link_sent(i);
    }
    if (samples != NULL) samples[i - first] = ticks() - begin;
    if (fresh) compare(side, i, i);
  }
}

static void flow(const struct side* side, uint64_t first, uint64_t count, int fresh) {
  uint64_t window = side->spec.window;
  uint64_t part = window > 1 ? window / 2 : 1;
  for (uint64_t k = 0; k < count; ++k) {
    uint64_t i = first + k;
    if (side->rank == 0) {
      /* Its slot is free when the message that was there before has been confirmed. */
      if (k >= window) link_acked(first + (k - window) / part * part + part);
      if (k >= window) link_sent(i - window);
      if (fresh) fill(side, i, i);
      link_send(i);
    } else {
      link_receive(i);
      if (fresh) compare(side, i, i);
      if ((k + 1) % part == 0 || k + 1 == count) link_ack(i + 1);
    }
  }
  if (side->rank != 0) return;
  for (uint64_t k = count > window ? count - window : 0; k < count; ++k) link_sent(first + k);
  link_acked(first + count);
}

static int by_value(const void* left, const void* right) {
  uint64_t a = *(const uint64_t*)left;
  uint64_t b = *(const uint64_t*)right;
  return (a > b) - (a < b);
}

static void report(const struct side* side, uint64_t* samples, double us, double per_us) {
  const struct spec* spec = &side->spec;
  char facts[512] = "";
  link_describe(facts, sizeof(facts));
  printf("{\"tool\":\"%s\",\"op\":\"%s\",\"size\":%llu,\"iters\":%llu,\"window\":%llu", kTool,
         spec->bandwidth ? "bandwidth" : "latency", (unsigned long long)spec->size,
         (unsigned long long)spec->iterations, (unsigned long long)spec->window);
  if (spec->bandwidth) {
    printf(",\"GBps\":%.6f", (double)spec->size * (double)spec->iterations / us / 1e3);
    printf(",\"message_us\":%.4f", us / (double)spec->iterations);
  } else {
    qsort(samples, spec->iterations, sizeof(*samples), by_value);
    /* The smallest samples that a half and 99 % of them do not exceed. */
    uint64_t half = samples[(spec->iterations + 1) / 2 - 1];
    uint64_t most = samples[(spec->iterations * 99 + 99) / 100 - 1];
    printf(",\"p50_us\":%.4f", (double)half / per_us / 2);
    printf(",\"p99_us\":%.4f", (double)most / per_us / 2);
  }
  printf(",\"checked\":%llu,\"wrong_bytes\":%llu%s}\n", (unsigned long long)checked,
         (unsigned long long)wrong, facts);
}

uint64_t run(struct side* side) {
  const struct spec* spec = &side->spec;
  uint64_t* samples = calloc(spec->iterations, sizeof(*samples));
  if (samples == NULL) fail("no memory for %llu samples", (unsigned long long)spec->iterations);
  double per_us = ticks_per_us();
  double us = 0;
  uint64_t next = 0;
  for (uint64_t s = 0; s < spec->window; ++s) fill(side, s, 0);
  for (int timed = 0; timed < 2; ++timed) {
    uint64_t count = timed ? spec->iterations : spec->warmup;
    barrier(side);
    uint64_t begin = ticks();
    if (spec->bandwidth) {
      flow(side, next, count, spec->check);
    } else {
      latency(side, next, count, spec->check, timed ? samples : NULL);
    }
    us = (double)(ticks() - begin) / per_us;
    next += count;
  }
  uint64_t last = next < spec->window ? next : spec->window;
  int receives = !spec->bandwidth || side->rank == 1;
  for (uint64_t k = 1; k <= last && receives && !spec->check; ++k) compare(side, next - k, 0);
  barrier(side);
  if (spec->bandwidth) {
    flow(side, next, spec->window, 1);
  } else {
    latency(side, next, spec->window, 1, NULL);
  }
  uint64_t theirs[2] = {checked, wrong};
  send_all(side->socket, theirs, sizeof(theirs));
  receive_all(side->socket, theirs, sizeof(theirs));
  checked += theirs[0];
  wrong += theirs[1];
  if (side->rank == 0) report(side, samples, us, per_us);
  free(samples);
  barrier(side);
  return wrong;
}
