// SPDX-License-Identifier: Apache-2.0
//
// Child processes, messages with descriptors, and the loaded driver.
//
// Threading: one thread.
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "support.h"

namespace fake_test {
namespace {

constexpr int kChildSocket = 3;

struct Wire {
  uint64_t number;
  uint64_t size;
  char handle[64];
};

std::map<std::string, Role>& roles() {
  static std::map<std::string, Role> all;
  return all;
}

template <typename T>
void load(void* library, const char* symbol, T* out) {
  *out = reinterpret_cast<T>(dlsym(library, symbol));
  if (*out == nullptr) {
    fprintf(stderr, "the fake driver lacks %s\n", symbol);
    abort();
  }
}

Driver load_driver() {
  void* library = dlopen(FAKE_CUDA_LIBRARY, RTLD_NOW);
  if (library == nullptr) {
    fprintf(stderr, "%s\n", dlerror());
    abort();
  }
  Driver out;
#define FAKE_LOAD(name, symbol, parameters) load(library, #symbol, &out.name);
  OH_CUDA_FUNCTIONS(FAKE_LOAD)
  OH_CUDA_NEWER_FUNCTIONS(FAKE_LOAD)
  OH_CUDA_TEST_FUNCTIONS(FAKE_LOAD)
#undef FAKE_LOAD
  load(library, "fake_cuda_counts", &out.counts);
  load(library, "fake_cuda_calls", &out.calls);
  load(library, "fake_cuda_fail", &out.fail);
  load(library, "fake_cuda_clear_failures", &out.clear_failures);
  load(library, "fake_cuda_peek", &out.peek);
  load(library, "fake_cuda_poke", &out.poke);
  load(library, "fake_cuda_hold", &out.hold);
  load(library, "fake_cuda_release", &out.release);
  load(library, "fake_cuda_hold_all", &out.hold_all);
  load(library, "fake_cuda_release_all", &out.release_all);
  load(library, "fake_cuda_captured", &out.captured);
  load(library, "fake_cuda_blocks", &out.blocks);
  load(library, "fake_cuda_running", &out.running);
  load(library, "fake_cuda_blocked", &out.blocked);
  load(library, "fake_cuda_delay", &out.delay);
  return out;
}

}  // namespace

const Driver& driver() {
  static const Driver kDriver = load_driver();
  return kDriver;
}

std::vector<char> pattern(size_t size, unsigned seed) {
  std::vector<char> bytes(size);
  uint32_t state = seed * 2654435761u + 1;
  for (char& byte : bytes) {
    state = state * 1664525u + 1013904223u;
    byte = static_cast<char>(state >> 24);
  }
  return bytes;
}

std::vector<char> peek(DevicePtr address, size_t size) {
  std::vector<char> bytes(size);
  EXPECT_EQ(driver().peek(address, bytes.data(), size), 0);
  return bytes;
}

void poke(DevicePtr address, const std::vector<char>& bytes) {
  EXPECT_EQ(driver().poke(address, bytes.data(), bytes.size()), 0);
}

size_t free_memory() {
  size_t free = 0;
  size_t total = 0;
  EXPECT_EQ(driver().memory_info(&free, &total), kSuccess);
  return free;
}

Current::Current(Device device) : device_(device) {
  EXPECT_EQ(driver().init(0), kSuccess);
  EXPECT_EQ(driver().primary_retain(&context_, device), kSuccess);
  EXPECT_EQ(driver().context_push(context_), kSuccess);
}

Current::~Current() {
  EXPECT_EQ(driver().context_pop(nullptr), kSuccess);
  EXPECT_EQ(driver().primary_release(device_), kSuccess);
}

void send(int socket, const Message& message) {
  Wire wire{message.number, message.size, {}};
  memcpy(wire.handle, message.handle, sizeof(wire.handle));
  iovec part{&wire, sizeof(wire)};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  if (!message.fds.empty()) {
    const size_t size = message.fds.size() * sizeof(int);
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(size);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(size);
    memcpy(CMSG_DATA(rights), message.fds.data(), size);
  }
  if (sendmsg(socket, &header, MSG_NOSIGNAL) != static_cast<ssize_t>(sizeof(wire))) {
    perror("fake_cuda_tests: send");
  }
}

Message receive(int socket) {
  Wire wire{};
  iovec part{&wire, sizeof(wire)};
  alignas(cmsghdr) char control[CMSG_SPACE(8 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &part;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof(control);
  if (recvmsg(socket, &header, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(sizeof(wire))) {
    fprintf(stderr, "fake_cuda_tests: the other process is gone\n");
    exit(1);
  }
  Message message;
  message.number = wire.number;
  message.size = wire.size;
  memcpy(message.handle, wire.handle, sizeof(wire.handle));
  const cmsghdr* rights = CMSG_FIRSTHDR(&header);
  if (rights != nullptr) {
    message.fds.resize((rights->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    memcpy(message.fds.data(), CMSG_DATA(rights), message.fds.size() * sizeof(int));
  }
  return message;
}

Child::Child(const std::string& role, const Settings& settings) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) abort();
  std::vector<std::string> texts;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.starts_with("GTEST_"))
      continue;  // GoogleTest's sharding and report settings are the parent's
    if (settings.count(text.substr(0, text.find('='))) == 0) texts.push_back(text);
  }
  for (const auto& [key, value] : settings) texts.push_back(key + "=" + value);
  std::vector<char*> environment;
  for (std::string& text : texts) environment.push_back(text.data());
  environment.push_back(nullptr);
  std::string program = "/proc/self/exe";
  std::string flag = "--child";
  std::string name = role;
  char* arguments[] = {program.data(), flag.data(), name.data(), nullptr};
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // Moved to a high number first: a duplicate onto itself would stay close-on-exec.
  const int high = fcntl(ends[1], F_DUPFD_CLOEXEC, 64);
  posix_spawn_file_actions_adddup2(&actions, high, kChildSocket);
  if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, arguments, environment.data()) != 0) {
    abort();
  }
  posix_spawn_file_actions_destroy(&actions);
  close(high);
  close(ends[1]);
  socket_ = ends[0];
}

Child::~Child() {
  close(socket_);
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void Child::kill() {
  ::kill(pid_, SIGKILL);
  wait();
}

int Child::wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

AddRole::AddRole(const char* name, Role role) { roles()[name] = role; }

int play(const std::string& role, int socket) {
  const auto found = roles().find(role);
  if (found == roles().end()) return 2;
  const int code = found->second(socket);
  return ::testing::Test::HasFailure() ? 1 : code;
}

}  // namespace fake_test
