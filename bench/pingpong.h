/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the yardsticks of messages between hosts share: pingpong_main.c has options and processes,
 * pingpong.c the timed loops. A transport is one more file, which defines the functions link_*; the
 * three are compiled together (tools/compare_hosts.py does it).
 *
 * Rank 0 measures. Messages of one direction have numbers 0, 1, ...; message i of a window w is
 * in slot i % w, so no two messages in flight share a buffer. Threading: none.
 */
#ifndef ONEHOP_BENCH_PINGPONG_H_
#define ONEHOP_BENCH_PINGPONG_H_

#include <stddef.h>
#include <stdint.h>

/* The options; rank 1 gets them from rank 0, so they need to be given only once. */
struct spec {
  int bandwidth; /* else latency */
  int check;     /* fresh bytes in each message, each compared whole; times mean nothing */
  int corrupt;   /* a wrong byte in each message: to see that it is found */
  uint64_t size;
  uint64_t iterations;
  uint64_t warmup;
  uint64_t window; /* messages in flight; 1 for latency */
  int cpus[2];     /* -1: not pinned */
  /* For UCP alone. */
  int peer_errors; /* UCP_ERR_HANDLING_MODE_PEER */
  int wakeup;      /* UCP_FEATURE_WAKEUP */
  int persistent;  /* UCP_AM_FLAG_PERSISTENT_DATA */
  int in_header;   /* the payload inside of the message's header */
  int threads;     /* ucs_thread_mode_t */
  uint64_t header; /* bytes */
};

struct side {
  struct spec spec;
  int rank;
  int socket;   /* to the other process: TCP, without Nagle's delay */
  uint8_t* out; /* spec.window slots each of spec.size bytes */
  uint8_t* in;
};

extern const char kTool[];

/* Nothing has been sent yet when it is called, and the other side is in it, too. */
void link_open(struct side* side);
void link_close(void);
/* Starts to send message `i` out of its slot. */
void link_send(uint64_t i);
/* Returns when the slot of message `i` may be written again. */
void link_sent(uint64_t i);
/* Returns when message `i` is in its slot. */
void link_receive(uint64_t i);
/* Tells the other side that messages 0 .. `count` - 1 have come; waits until it has told that. */
void link_ack(uint64_t count);
void link_acked(uint64_t count);
/* Moves on what needs the processor while this process waits for something else. */
void link_progress(void);
/* Writes what the line of JSON is to tell of the transport: `,"name":"value"`. */
void link_describe(char* text, size_t room);

/* Measures, prints rank 0's line, and returns the number of wrong bytes of both sides. */
uint64_t run(struct side* side);

/* Ends the program with a text of what was tried and why it failed, printf's way. */
_Noreturn void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
/* All bytes, or the program ends. */
void send_all(int socket, const void* data, size_t size);
void receive_all(int socket, void* data, size_t size);

#endif
