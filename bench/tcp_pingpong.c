/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardstick of tools/compare_hosts.py without a library: messages over a TCP socket.
 *
 * No frames: both sides know the size, and a message of 0 bytes is one byte. The socket does not
 * block, and both sides poll it: to wake a thread that sleeps in the kernel takes longer than a
 * small message does.
 */
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "pingpong.h"

const char kTool[] = "tcp";

static struct side* side;
static uint64_t acked;

void link_open(struct side* opened) {
  const struct spec* spec = &opened->spec;
  if (spec->in_header | spec->peer_errors | spec->wakeup | spec->persistent | spec->threads) {
    fail("--in-header, --peer-errors, --wakeup, --persistent and --threads are UCX's");
  }
  side = opened;
}

void link_close(void) {}

static void move(int sends, uint8_t* at, size_t size) {
  while (size > 0) {
    ssize_t moved = sends ? send(side->socket, at, size, MSG_NOSIGNAL | MSG_DONTWAIT)
                          : recv(side->socket, at, size, MSG_DONTWAIT);
    if (moved < 0 && (errno == EAGAIN || errno == EINTR)) continue;
    if (moved < 0) fail("%s of %zu bytes: %s", sends ? "send" : "recv", size, strerror(errno));
    if (moved == 0) fail("the other process closed the socket, %zu bytes early", size);
    at += moved;
    size -= (size_t)moved;
  }
}

static void message(int sends, uint8_t* slots, uint64_t i) {
  uint8_t nothing = 0;
  if (side->spec.size == 0) {
    move(sends, &nothing, 1);
  } else {
    move(sends, slots + i % side->spec.window * side->spec.size, side->spec.size);
  }
}

void link_send(uint64_t i) { message(1, side->out, i); }

void link_sent(uint64_t i) { (void)i; } /* the kernel has a copy */

void link_receive(uint64_t i) { message(0, side->in, i); }

void link_ack(uint64_t count) { move(1, (uint8_t*)&count, sizeof(count)); }

void link_acked(uint64_t count) {
  while (acked < count) move(0, (uint8_t*)&acked, sizeof(acked));
}

void link_progress(void) {}

void link_describe(char* text, size_t room) { snprintf(text, room, ",\"waits\":\"polling\""); }
