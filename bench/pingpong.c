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

/* ---- the loops ---- */

struct pass {
  uint64_t first; /* number of its first message */
  uint64_t count;
  int fresh;         /* new bytes in each message, compared whole */
  uint64_t* samples; /* NULL: none are wanted */
};

static void latency(const struct side* side, const struct pass* pass) {
  for (uint64_t k = 0; k < pass->count; ++k) {
    uint64_t i = pass->first + k;
    if (pass->fresh) fill(side, i, i);
    uint64_t begin = ticks();
    if (side->rank == 0) {
      link_send(i);
      link_sent(i);
      link_receive(i);
      if (pass->fresh) compare(side, i, i);
    } else {
      link_receive(i);
      /* Before the answer: behind it the next message may come into the slot. */
      if (pass->fresh) compare(side, i, i);
      link_send(i);
      link_sent(i);
    }
    if (pass->samples != NULL) pass->samples[k] = ticks() - begin;
  }
}

/* Messages that rank 1 confirms at once. */
static uint64_t part_of(uint64_t window) { return window > 1 ? window / 2 : 1; }

static void send_flow(const struct side* side, const struct pass* pass) {
  uint64_t window = side->spec.window;
  uint64_t part = part_of(window);
  for (uint64_t k = 0; k < pass->count; ++k) {
    uint64_t i = pass->first + k;
    if (k >= window) {
      /* The part in which the slot's last message was confirmed. */
      link_acked(pass->first + (k - window) / part * part + part);
      link_sent(i - window);
    }
    if (pass->fresh) fill(side, i, i);
    link_send(i);
  }
  uint64_t open = pass->count < window ? pass->count : window;
  for (uint64_t k = pass->count - open; k < pass->count; ++k) link_sent(pass->first + k);
  link_acked(pass->first + pass->count);
}

static void receive_flow(const struct side* side, const struct pass* pass) {
  uint64_t part = part_of(side->spec.window);
  for (uint64_t k = 0; k < pass->count; ++k) {
    uint64_t i = pass->first + k;
    link_receive(i);
    if (pass->fresh) compare(side, i, i);
    if ((k + 1) % part == 0 || k + 1 == pass->count) link_ack(i + 1);
  }
}

static void go(const struct side* side, const struct pass* pass) {
  if (!side->spec.bandwidth) {
    latency(side, pass);
  } else if (side->rank == 0) {
    send_flow(side, pass);
  } else {
    receive_flow(side, pass);
  }
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
  fflush(stdout); /* the other process may end this one when it ends with an error */
}

/* Both sides learn what both have found. */
static void add_theirs(const struct side* side) {
  uint64_t theirs[2] = {checked, wrong};
  send_all(side->socket, theirs, sizeof(theirs));
  receive_all(side->socket, theirs, sizeof(theirs));
  checked += theirs[0];
  wrong += theirs[1];
}

uint64_t run(struct side* side) {
  const struct spec* spec = &side->spec;
  uint64_t* samples = calloc(spec->iterations, sizeof(*samples));
  if (samples == NULL) fail("no memory for %llu samples", (unsigned long long)spec->iterations);
  uint64_t end = spec->warmup + spec->iterations;
  struct pass warmup = {.first = 0, .count = spec->warmup, .fresh = spec->check};
  struct pass timed = {spec->warmup, spec->iterations, spec->check, samples};
  struct pass checks = {.first = end, .count = spec->window, .fresh = 1};
  double per_us = ticks_per_us();
  for (uint64_t s = 0; s < spec->window; ++s) fill(side, s, 0);
  barrier(side);
  go(side, &warmup);
  barrier(side);
  uint64_t begin = ticks();
  go(side, &timed);
  double us = (double)(ticks() - begin) / per_us;
  int receives = !spec->bandwidth || side->rank == 1;
  uint64_t last = end < spec->window ? end : spec->window;
  for (uint64_t k = 1; k <= last && receives && !spec->check; ++k) compare(side, end - k, 0);
  barrier(side);
  go(side, &checks);
  add_theirs(side);
  if (side->rank == 0) report(side, samples, us, per_us);
  free(samples);
  barrier(side);
  return wrong;
}
