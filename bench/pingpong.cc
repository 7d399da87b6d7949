// SPDX-License-Identifier: Apache-2.0
#include "pingpong.h"

#include <getopt.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <type_traits>

#include "loops.h"

namespace bench {
namespace {

const char* tool_name = "";

// ---- The two processes

pid_t child;

void on_child(int) {
  int status = 0;
  // The child has printed the reason. Exit: its messages would never arrive.
  if (waitpid(child, &status, WNOHANG) == child && status != 0) _exit(1);
}

int with_port(const char* host, const char* port, bool listens) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = listens ? AI_PASSIVE : 0;
  addrinfo* found;
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

int port_of(int listener) {
  sockaddr_storage at;
  socklen_t length = sizeof(at);
  char port[16];
  if (getsockname(listener, reinterpret_cast<sockaddr*>(&at), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&at), length, nullptr, 0, port, sizeof(port),
                  NI_NUMERICSERV) != 0) {
    fail("no port: %s", strerror(errno));
  }
  return atoi(port);
}

int accept_one(int listener) {
  int made = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
  if (made < 0) fail("accept: %s", strerror(errno));
  close(listener);
  return made;
}

// Side 1 is a child process. Each dies with the other.
SocketLink fork_other() {
  int listener = with_port("127.0.0.1", "0", true);
  const std::string port = std::to_string(port_of(listener));
  signal(SIGCHLD, on_child);
  pid_t parent = getpid();
  child = fork();
  if (child < 0) fail("fork: %s", strerror(errno));
  if (child > 0) return {0, accept_one(listener)};
  signal(SIGCHLD, SIG_DFL);
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) exit(1);
  close(listener);
  return {1, with_port("127.0.0.1", port.c_str(), false)};
}

SocketLink find_other(const std::string& port, std::string host) {
  if (!port.empty()) {
    int listener = with_port(nullptr, port.c_str(), true);
    fprintf(stderr, "listening on port %d\n", port_of(listener));
    return {1, accept_one(listener)};
  }
  if (host.empty()) return fork_other();
  const size_t colon = host.rfind(':');
  if (colon == std::string::npos) fail("--connect %s: takes HOST:PORT", host.c_str());
  const std::string at = host.substr(colon + 1);
  host.resize(colon);
  return {0, with_port(host.c_str(), at.c_str(), false)};
}

void pin(int cpu) {
  if (cpu < 0) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  if (sched_setaffinity(0, sizeof(set), &set) != 0) fail("CPU %d: %s", cpu, strerror(errno));
}

// ---- Options

uint64_t number(const char* name, const char* text, uint64_t least) {
  char* end;
  errno = 0;
  unsigned long long value = strtoull(text, &end, 10);
  if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value < least) {
    fail("--%s %s: takes a number, %llu or more", name, text, (unsigned long long)least);
  }
  return value;
}

int thread_mode(const char* text) {
  const char* const kNames[] = {"single", "serialized", "multi"};
  for (int i = 0; i < 3; ++i) {
    if (strcmp(text, kNames[i]) == 0) return i;
  }
  fail("--threads %s: takes single, serialized or multi", text);
}

const option kOptions[] = {
    {"size", 1, nullptr, 's'},       {"iters", 1, nullptr, 'n'},       {"warmup", 1, nullptr, 'w'},
    {"window", 1, nullptr, 'W'},     {"cpus", 1, nullptr, 'c'},        {"check", 0, nullptr, 'C'},
    {"listen", 1, nullptr, 'l'},     {"connect", 1, nullptr, 'o'},     {"header", 1, nullptr, 'h'},
    {"in-header", 0, nullptr, 'i'},  {"peer-errors", 0, nullptr, 'e'}, {"wakeup", 0, nullptr, 'k'},
    {"persistent", 0, nullptr, 'p'}, {"threads", 1, nullptr, 't'},     {"corrupt", 0, nullptr, 'x'},
    {nullptr, 0, nullptr, 0},
};

// ---- Output

// The smallest sample that `share` of all samples do not exceed.
double percentile(const std::vector<double>& sorted, double share) {
  const auto count = std::ceil(share * static_cast<double>(sorted.size()));
  return sorted[static_cast<size_t>(std::max(count, 1.0)) - 1];
}

void report(const Settings& settings, Outcome found, const std::string& facts) {
  const Spec& spec = settings.spec;
  const bool flow = settings.spec.op == Op::kBandwidth;
  printf("{\"tool\":\"%s\",\"op\":\"%s\",\"size\":%zu,\"iters\":%zu,\"window\":%zu", tool_name,
         flow ? "bandwidth" : "latency", spec.size, spec.iterations, spec.window);
  if (flow) {
    printf(",\"GBps\":%.6f", found.bytes / found.seconds / 1e9);
    printf(",\"message_us\":%.4f", found.seconds * 1e6 / static_cast<double>(spec.iterations));
  } else {
    std::sort(found.samples_us.begin(), found.samples_us.end());
    printf(",\"p50_us\":%.4f", percentile(found.samples_us, 0.5));
    printf(",\"p99_us\":%.4f", percentile(found.samples_us, 0.99));
  }
  printf(",\"checked\":%llu,\"wrong_bytes\":%llu%s}\n",
         static_cast<unsigned long long>(found.checked),
         static_cast<unsigned long long>(found.wrong), facts.c_str());
  fflush(stdout);  // the other process may kill this one if it fails
}

}  // namespace

void fail(const char* format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "%s_pingpong: ", tool_name);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

SocketLink::SocketLink(int number, int socket) : number_(number), socket_(socket) {
  int on = 1;
  setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

void SocketLink::send_all(const void* data, size_t size) const {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    ssize_t sent = ::send(socket_, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) fail("send to the other process: %s", strerror(errno));
    at += sent;
    size -= static_cast<size_t>(sent);
  }
}

void SocketLink::receive_all(void* data, size_t size) const {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    ssize_t got = ::recv(socket_, at, size, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      progress();
      continue;
    }
    if (got < 0) fail("recv from the other process: %s", strerror(errno));
    if (got == 0) fail("the other process has ended");
    at += got;
    size -= static_cast<size_t>(got);
  }
}

Bytes SocketLink::swap(const Bytes& bytes) {
  uint64_t length = bytes.size();
  send_all(&length, sizeof(length));
  send_all(bytes.data(), bytes.size());
  receive_all(&length, sizeof(length));
  Bytes theirs(length);
  receive_all(theirs.data(), theirs.size());
  return theirs;
}

AckedWire::AckedWire(Link& link, const Settings& settings)
    : SlotWire(link),
      settings_(settings),
      part_(settings.spec.op == Op::kLatency ? 0
                                             : std::max<uint64_t>(settings.spec.window / 2, 1)) {
  give_and_take(settings.spec, [&] { return slots_of(settings); });
}

void AckedWire::isend(uint64_t i) {
  const uint64_t window = settings_.spec.window;
  // Wait for the acknowledgement of the part that contains the slot's previous message.
  if (i == 0) acked_ = 0;
  if (part_ > 0 && i >= window) await_ack((i - window) / part_ * part_ + part_);
  start(i);
  next_ = i + 1;
}

void AckedWire::received(uint64_t i) {
  if (part_ > 0 && i > 0 && i % part_ == 0) ack(i);
  await(i);
  next_ = i + 1;
}

void AckedWire::await_ack(uint64_t count) {
  while (acked_ < count) acked_ = std::max(acked_, next_ack());
}

void AckedWire::confirm() { to_ ? ack(next_) : await_ack(next_); }

std::unique_ptr<Buffer> slots_of(const Settings& settings) {
  return std::make_unique<Buffer>(settings.spec.size * settings.spec.window);
}

Settings read_settings(const char* tool, int argc, char** argv, std::string* port,
                       std::string* host) {
  Settings found;
  Spec& spec = found.spec;
  bool warmup = false;
  int option;
  tool_name = tool;
  spec.window = 16;
  while ((option = getopt_long(argc, argv, "", kOptions, nullptr)) != -1) {
    if (option == 's') spec.size = number("size", optarg, 0);
    if (option == 'n') spec.iterations = number("iters", optarg, 1);
    if (option == 'w') spec.warmup = number("warmup", optarg, 0), warmup = true;
    if (option == 'W') spec.window = number("window", optarg, 1);
    if (option == 'h') found.header = number("header", optarg, 0);
    if (option == 't') found.threads = thread_mode(optarg);
    if (option == 'c' && sscanf(optarg, "%d,%d", &found.cpus[0], &found.cpus[1]) != 2) {
      fail("--cpus %s: takes two numbers, A,B", optarg);
    }
    if (option == 'l') *port = optarg;
    if (option == 'o') *host = optarg;
    spec.thorough |= option == 'C';
    spec.corrupt |= option == 'x';
    found.in_header |= option == 'i';
    found.peer_errors |= option == 'e';
    found.wakeup |= option == 'k';
    found.persistent |= option == 'p';
    if (option == '?') exit(2);
  }
  const std::string op = optind + 1 == argc ? argv[optind] : "";
  if (op == "bandwidth") spec.op = Op::kBandwidth;
  if (port->empty() && op != "bandwidth" && op != "latency") {
    fprintf(stderr, "usage: %s_pingpong latency|bandwidth [OPTIONS]; see pingpong.h\n", tool);
    exit(2);
  }
  if (spec.op == Op::kLatency) spec.window = 1;
  if (!warmup) spec.warmup = spec.iterations / 10 + 2;
  return found;
}

int measure(Wire& wire, const Settings& settings, const std::string& facts) {
  Link& link = wire.link();
  Outcome found = run(wire, settings.spec);
  uint64_t both[2] = {found.checked, found.wrong};
  Bytes bytes(sizeof(both));
  memcpy(bytes.data(), both, sizeof(both));
  bytes = link.swap(bytes);
  memcpy(both, bytes.data(), sizeof(both));
  found.checked += both[0];
  found.wrong += both[1];
  if (link.first()) report(settings, found, facts);
  link.sync();
  return found.wrong == 0 ? 0 : 1;
}

int run_pingpong(const char* tool, int argc, char** argv, const Open& open) {
  std::string port;
  std::string host;
  Settings settings = read_settings(tool, argc, argv, &port, &host);
  SocketLink link = find_other(port, host);
  static_assert(std::is_trivially_copyable_v<Settings>);
  if (link.first()) {
    link.send_all(&settings, sizeof(settings));
  } else if (::recv(link.socket(), &settings, sizeof(settings), MSG_WAITALL) !=
             static_cast<ssize_t>(sizeof(settings))) {
    fail("side 0 has told no options");
  }
  pin(settings.cpus[link.number()]);
  std::string facts;
  std::unique_ptr<Wire> wire = open(link, settings, &facts);
  return measure(*wire, settings, facts);
}

}  // namespace bench
