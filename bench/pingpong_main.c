/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The program around the loops of pingpong.c: options, and the other process.
 *
 *   TOOL latency|bandwidth [OPTIONS]                      two processes of this host, by fork
 *   TOOL --listen PORT                                    the other side of another host's; 0: any
 *   TOOL latency|bandwidth [OPTIONS] --connect HOST:PORT  the side that measures
 *
 * Prints a line of JSON; ends with 1 if a byte was wrong.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "pingpong.h"

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s_pingpong: ", kTool);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

void send_all(int to, const void* data, size_t size) {
  const char* at = data;
  while (size > 0) {
    ssize_t sent = send(to, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) fail("send to the other process: %s", strerror(errno));
    at += sent;
    size -= (size_t)sent;
  }
}

/* Moves the transport on meanwhile: the other side may need that to come here. */
void receive_all(int from, void* data, size_t size) {
  char* at = data;
  while (size > 0) {
    ssize_t got = recv(from, at, size, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      link_progress();
      continue;
    }
    if (got < 0) fail("recv from the other process: %s", strerror(errno));
    if (got == 0) fail("the other process has ended");
    at += got;
    size -= (size_t)got;
  }
}

/* ---- the two processes ---- */

static pid_t child;

static void on_child(int number) {
  int status = 0;
  (void)number;
  /* It has said why; waiting for its messages would have no end. */
  if (waitpid(child, &status, WNOHANG) == child && status != 0) _exit(1);
}

static int with_port(const char* host, const char* port, int listens) {
  struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = listens ? AI_PASSIVE : 0};
  struct addrinfo* found;
  int on = 1;
  int problem = getaddrinfo(host, port, &hints, &found);
  if (problem != 0) fail("%s:%s: %s", host ? host : "*", port, gai_strerror(problem));
  int made = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (made < 0) fail("socket: %s", strerror(errno));
  if (listens) {
    setsockopt(made, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (bind(made, found->ai_addr, found->ai_addrlen) != 0 || listen(made, 1) != 0) {
      fail("listen on %s:%s: %s", host ? host : "*", port, strerror(errno));
    }
  } else if (connect(made, found->ai_addr, found->ai_addrlen) != 0) {
    fail("connect to %s:%s: %s", host, port, strerror(errno));
  }
  freeaddrinfo(found);
  return made;
}

static int port_of(int listener) {
  struct sockaddr_storage at;
  socklen_t length = sizeof(at);
  char port[16];
  if (getsockname(listener, (struct sockaddr*)&at, &length) != 0 ||
      getnameinfo((struct sockaddr*)&at, length, NULL, 0, port, sizeof(port), NI_NUMERICSERV) !=
          0) {
    fail("no port: %s", strerror(errno));
  }
  return atoi(port);
}

static int accept_one(int listener) {
  int made = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
  if (made < 0) fail("accept: %s", strerror(errno));
  close(listener);
  return made;
}

/* Rank 1 is a child; it dies with its parent, and the parent with it. */
static void fork_other(struct side* side) {
  int listener = with_port("127.0.0.1", "0", 1);
  char port[16];
  snprintf(port, sizeof(port), "%d", port_of(listener));
  signal(SIGCHLD, on_child);
  pid_t parent = getpid();
  child = fork();
  if (child < 0) fail("fork: %s", strerror(errno));
  if (child == 0) {
    signal(SIGCHLD, SIG_DFL);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) exit(1);
    close(listener);
    side->socket = with_port("127.0.0.1", port, 0);
    side->rank = 1;
  } else {
    side->socket = accept_one(listener);
  }
}

static uint8_t* slots(const struct spec* spec) {
  size_t size = spec->size * spec->window;
  uint8_t* made = malloc(size > 0 ? size : 1);
  if (made == NULL) fail("no memory for %llu slots", (unsigned long long)spec->window);
  return memset(made, 0xee, size);
}

/* Returns the number of wrong bytes. */
static uint64_t serve(struct side* side) {
  int on = 1;
  setsockopt(side->socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  if (side->rank == 0) {
    send_all(side->socket, &side->spec, sizeof(side->spec));
  } else if (recv(side->socket, &side->spec, sizeof(side->spec), MSG_WAITALL) !=
             (ssize_t)sizeof(side->spec)) {
    fail("rank 0 has told no options");
  }
  int cpu = side->spec.cpus[side->rank];
  if (cpu >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    if (sched_setaffinity(0, sizeof(set), &set) != 0) fail("CPU %d: %s", cpu, strerror(errno));
  }
  side->out = slots(&side->spec);
  side->in = slots(&side->spec);
  link_open(side);
  uint64_t wrong = run(side);
  link_close();
  return wrong;
}

/* ---- options ---- */

static uint64_t number(const char* name, const char* text, uint64_t least) {
  char* end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value < least) {
    fail("--%s %s: takes a number, %llu or more", name, text, (unsigned long long)least);
  }
  return value;
}

static int thread_mode(const char* text) {
  static const char* const kNames[] = {"single", "serialized", "multi"};
  for (int i = 0; i < 3; ++i) {
    if (strcmp(text, kNames[i]) == 0) return i;
  }
  fail("--threads %s: takes single, serialized or multi", text);
}

static const struct option kOptions[] = {
    {"size", 1, NULL, 's'},       {"iters", 1, NULL, 'n'},       {"warmup", 1, NULL, 'w'},
    {"window", 1, NULL, 'W'},     {"cpus", 1, NULL, 'c'},        {"check", 0, NULL, 'C'},
    {"listen", 1, NULL, 'l'},     {"connect", 1, NULL, 'o'},     {"header", 1, NULL, 'h'},
    {"in-header", 0, NULL, 'i'},  {"peer-errors", 0, NULL, 'e'}, {"wakeup", 0, NULL, 'k'},
    {"persistent", 0, NULL, 'p'}, {"threads", 1, NULL, 't'},     {"corrupt", 0, NULL, 'x'},
    {NULL, 0, NULL, 0},
};

/* Returns where to connect to, or NULL; `port` where to listen. */
static char* read_options(int argc, char** argv, struct spec* spec, const char** port) {
  char* host = NULL;
  int warmup = 0;
  int found;
  spec->size = 8;
  spec->iterations = 1000;
  while ((found = getopt_long(argc, argv, "", kOptions, NULL)) != -1) {
    if (found == 's') spec->size = number("size", optarg, 0);
    if (found == 'n') spec->iterations = number("iters", optarg, 1);
    if (found == 'w') spec->warmup = number("warmup", optarg, 0), warmup = 1;
    if (found == 'W') spec->window = number("window", optarg, 1);
    if (found == 'h') spec->header = number("header", optarg, 0);
    if (found == 't') spec->threads = thread_mode(optarg);
    if (found == 'c' && sscanf(optarg, "%d,%d", &spec->cpus[0], &spec->cpus[1]) != 2) {
      fail("--cpus %s: takes two numbers, A,B", optarg);
    }
    if (found == 'l') *port = optarg;
    if (found == 'o') host = optarg;
    spec->check |= found == 'C';
    spec->corrupt |= found == 'x';
    spec->in_header |= found == 'i';
    spec->peer_errors |= found == 'e';
    spec->wakeup |= found == 'k';
    spec->persistent |= found == 'p';
    if (found == '?') exit(2);
  }
  const char* op = optind + 1 == argc ? argv[optind] : "";
  spec->bandwidth = strcmp(op, "bandwidth") == 0;
  if (*port == NULL && !spec->bandwidth && strcmp(op, "latency") != 0) {
    fprintf(stderr, "usage: %s_pingpong latency|bandwidth [OPTIONS]; see pingpong.c\n", kTool);
    exit(2);
  }
  if (!spec->bandwidth) spec->window = 1;
  if (!warmup) spec->warmup = spec->iterations / 10 + 2;
  return host;
}

int main(int argc, char** argv) {
  const char* port = NULL;
  struct side side = {.spec = {.window = 16, .cpus = {-1, -1}, .header = 16}};
  char* host = read_options(argc, argv, &side.spec, &port);
  if (port != NULL) {
    int listener = with_port(NULL, port, 1);
    fprintf(stderr, "listening on port %d\n", port_of(listener));
    side.rank = 1;
    side.socket = accept_one(listener);
  } else if (host != NULL) {
    char* colon = strrchr(host, ':');
    if (colon == NULL) fail("--connect %s: takes HOST:PORT", host);
    *colon = '\0';
    side.socket = with_port(host, colon + 1, 0);
  } else {
    fork_other(&side);
  }
  return serve(&side) == 0 ? 0 : 1;
}
