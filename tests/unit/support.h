// SPDX-License-Identifier: Apache-2.0
//
// Shared by the unit tests: status assertions, descriptor counts, temporary folders and sockets.
// main.cc ends a test that hangs.
#pragma once

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/config.h"
#include "base/status.h"
#include "base/wire.h"
#include "platform/os/handles.h"

namespace unit {

::testing::AssertionResult is_ok(const oh::Status& status);
// Expects the code, and a part of the text.
::testing::AssertionResult fails_with(const oh::Status& status, oh_status code,
                                      const std::string& text = "");
template <typename T>
::testing::AssertionResult is_ok(const oh::Result<T>& result) {
  return is_ok(result.status());
}
template <typename T>
::testing::AssertionResult fails_with(const oh::Result<T>& result, oh_status code,
                                      const std::string& text = "") {
  return fails_with(result.status(), code, text);
}

// Returns the number of open descriptors of this process.
size_t open_fds();

// During its lifetime only `more` further descriptors can be opened.
class FewFiles {
 public:
  explicit FewFiles(size_t more);
  ~FewFiles();

 private:
  rlimit former_{};
  std::vector<oh::UniqueFd> below_;  // the limit is on numbers: these leave none free
};

// Waits until the count has returned: threads may still be closing descriptors.
::testing::AssertionResult fds_come_back_to(size_t before);
// Waits until the condition holds; false after a generous timeout.
bool eventually(const std::function<bool()>& condition);

// Runs assertions in a child process: for choices that a process makes only once. The child leaves
// without running exit handlers.
template <typename Body>
void in_child(Body body) {
  pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    body();
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

// Returns the configuration with only these variables set. The port range is private to this
// process.
oh::Config config_with(const std::map<std::string, std::string>& variables = {});

// Returns both ends of a non-blocking Unix stream socket.
std::pair<oh::UniqueFd, oh::UniqueFd> socket_pair();
// Returns a TCP port without a listener.
uint16_t free_port(int family);

// A temporary folder, removed with its contents.
class TempDir {
 public:
  TempDir();
  ~TempDir();
  const std::string& path() const { return path_; }
  size_t entries() const;

 private:
  std::string path_;
};

// Opens a library that never finishes loading on another thread, forks meanwhile, and returns what
// `open` returns in the child. A child that waits for the other thread is killed.
template <typename Open>
oh_status open_in_child_while_loading(Open open) {
  TempDir folder;
  const std::string pipe = folder.path() + "/library.so";
  EXPECT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  std::atomic<bool> over{false};
  std::thread loading([&] {
    EXPECT_FALSE(open(pipe).ok());
    over = true;
  });
  // The writer's open() succeeds once the loader has opened the file, whose bytes never come.
  int writer = -1;
  while (!over && (writer = ::open(pipe.c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC)) < 0) {
    std::this_thread::yield();
  }
  EXPECT_GE(writer, 0) << "the library was not loaded";
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    _exit(-open(pipe).status().code());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  close(writer);
  loading.join();
  EXPECT_TRUE(WIFEXITED(status)) << status;
  return static_cast<oh_status>(-WEXITSTATUS(status));
}

// Repeatable random numbers.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 2 + 1) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_ * 0x2545f4914f6cdd1dULL;
  }
  uint64_t below(uint64_t limit) { return (next() >> 11) % limit; }
  oh::Bytes bytes(size_t size);

 private:
  uint64_t state_;
};

// Threads that are joined at the end of the scope.
class Threads {
 public:
  ~Threads() { join(); }
  template <typename Body>
  void start(Body body) {
    threads_.emplace_back(std::move(body));
  }
  void join() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

 private:
  std::vector<std::thread> threads_;
};

}  // namespace unit
