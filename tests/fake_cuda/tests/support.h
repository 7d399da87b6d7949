// SPDX-License-Identifier: Apache-2.0
//
// Support for the fake driver's tests: its entry points, and child processes that play a role.
//
// Threading: one thread, except driver(): any thread.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

#include "control.h"
#include "platform/cuda/abi.h"

namespace fake_test {

using namespace oh::cuda;

struct Driver {
#define FAKE_MEMBER(name, symbol, parameters) Code(*name) parameters = nullptr;
  OH_CUDA_FUNCTIONS(FAKE_MEMBER)
  OH_CUDA_NEWER_FUNCTIONS(FAKE_MEMBER)
  OH_CUDA_TEST_FUNCTIONS(FAKE_MEMBER)
#undef FAKE_MEMBER
  decltype(&fake_cuda_counts) counts = nullptr;
  decltype(&fake_cuda_calls) calls = nullptr;
  decltype(&fake_cuda_fail) fail = nullptr;
  decltype(&fake_cuda_clear_failures) clear_failures = nullptr;
  decltype(&fake_cuda_peek) peek = nullptr;
  decltype(&fake_cuda_poke) poke = nullptr;
  decltype(&fake_cuda_hold) hold = nullptr;
  decltype(&fake_cuda_release) release = nullptr;
  decltype(&fake_cuda_hold_all) hold_all = nullptr;
  decltype(&fake_cuda_release_all) release_all = nullptr;
  decltype(&fake_cuda_captured) captured = nullptr;
  decltype(&fake_cuda_blocks) blocks = nullptr;
  decltype(&fake_cuda_running) running = nullptr;
  decltype(&fake_cuda_blocked) blocked = nullptr;
  decltype(&fake_cuda_delay) delay = nullptr;
};
// Loaded at the first call; every entry point must exist.
const Driver& driver();

// Returns the first `size` bytes of the sequence given by `seed`.
std::vector<char> pattern(size_t size, unsigned seed);
std::vector<char> peek(DevicePtr address, size_t size);
void poke(DevicePtr address, const std::vector<char>& bytes);
size_t free_memory();

// Retains a device's primary context and makes it current; undone at destruction.
class Current {
 public:
  explicit Current(Device device = 0);
  ~Current();
  Current(const Current&) = delete;
  Current& operator=(const Current&) = delete;
  Context context() const { return context_; }

 private:
  Device device_;
  Context context_ = nullptr;
};

// One message between a test and its child.
struct Message {
  uint64_t number = 0;
  uint64_t size = 0;
  char handle[64] = {};
  std::vector<int> fds;  // at most 8
};
void send(int socket, const Message& message);
Message receive(int socket);  // ends the process when the peer has closed the socket

using Settings = std::map<std::string, std::string>;  // environment variables

// A process of this binary that plays a role.
class Child {
 public:
  explicit Child(const std::string& role, const Settings& settings = {});
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void send(const Message& message) { fake_test::send(socket_, message); }
  Message receive() { return fake_test::receive(socket_); }
  void kill();
  // Returns the exit status, or the negated signal number.
  int wait();

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

using Role = int (*)(int socket);
// Defines a role; a failed check makes the child exit with 1.
struct AddRole {
  AddRole(const char* name, Role role);
};
#define FAKE_ROLE(name)                                              \
  static int role_##name(int socket);                                \
  static const ::fake_test::AddRole kAdd_##name(#name, role_##name); \
  static int role_##name([[maybe_unused]] int socket)
// Fails the run if driver objects are left at its end.
::testing::Environment* new_leak_check();
int play(const std::string& role, int socket);

}  // namespace fake_test
