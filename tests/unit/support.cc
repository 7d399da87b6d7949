// SPDX-License-Identifier: Apache-2.0
#include "unit/support.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "platform/os/net.h"

namespace unit {

::testing::AssertionResult is_ok(const oh::Status& status) {
  if (status.ok()) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << oh::status_name(status.code()) << ": " << status.text();
}

::testing::AssertionResult fails_with(const oh::Status& status, oh_status code,
                                      const std::string& text) {
  if (status.code() == code && status.text().find(text) != std::string::npos) {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure()
         << "expected " << oh::status_name(code) << " with '" << text << "', got "
         << oh::status_name(status.code()) << ": " << status.text();
}

size_t open_fds() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

FewFiles::FewFiles(size_t more) {
  EXPECT_EQ(getrlimit(RLIMIT_NOFILE, &former_), 0);
  below_.emplace_back(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 200));
  const int above = below_.back().get();
  do {
    below_.emplace_back(fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0));
  } while (below_.back().get() < above);
  const rlimit few{static_cast<rlim_t>(below_.back().get()) + 1 + more, former_.rlim_max};
  EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
}

FewFiles::~FewFiles() { setrlimit(RLIMIT_NOFILE, &former_); }

::testing::AssertionResult fds_come_back_to(size_t before) {
  if (eventually([&] { return open_fds() <= before; })) return ::testing::AssertionSuccess();
  auto failure = ::testing::AssertionFailure()
                 << open_fds() << " descriptors are open, " << before << " were before:";
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code ignored;
    failure << "\n  " << entry.path().filename().string() << " "
            << std::filesystem::read_symlink(entry.path(), ignored).string();
  }
  return failure;
}

bool eventually(const std::function<bool()>& condition) {
  oh::Deadline deadline = oh::Deadline::after(20 * oh::kSecond);
  while (!condition()) {
    if (deadline.passed()) return false;
    std::this_thread::yield();
  }
  return true;
}

namespace {
thread_local const std::map<std::string, std::string>* g_variables = nullptr;
const char* look_up(const char* name) {
  auto found = g_variables->find(name);
  return found == g_variables->end() ? nullptr : found->second.c_str();
}
}  // namespace

oh::Config config_with(const std::map<std::string, std::string>& variables) {
  std::map<std::string, std::string> all = variables;
  all.emplace("ONEHOP_PORT_RANGE", "40000-44000");
  g_variables = &all;
  oh::Result<oh::Config> config = oh::Config::from(look_up);
  if (!config.ok()) {
    ADD_FAILURE() << config.status().text();
    return oh::Config();
  }
  return *config;
}

std::pair<oh::UniqueFd, oh::UniqueFd> socket_pair() {
  int fds[2] = {-1, -1};
  EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
  return {oh::UniqueFd(fds[0]), oh::UniqueFd(fds[1])};
}

uint16_t free_port(int family) {
  oh::Result<oh::SocketAddress> address =
      oh::SocketAddress::numeric(family == AF_INET6 ? "::1" : "127.0.0.1", 0);
  oh::Result<oh::UniqueFd> fd = oh::listen_on(*address);
  EXPECT_TRUE(is_ok(fd));
  if (!fd.ok()) return 0;
  oh::SocketAddress bound;
  bound.size = sizeof(bound.storage);
  getsockname(fd->get(), reinterpret_cast<sockaddr*>(&bound.storage), &bound.size);
  return bound.port();
}

TempDir::TempDir() {
  char name[] = "/tmp/onehop-unit-XXXXXX";
  path_ = mkdtemp(name);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

size_t TempDir::entries() const {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(path_)) ++count;
  return count;
}

oh::Bytes Random::bytes(size_t size) {
  oh::Bytes bytes(size);
  for (size_t i = 0; i < size; i += sizeof(uint64_t)) {
    const uint64_t word = next();
    std::memcpy(&bytes[i], &word, std::min(sizeof(word), size - i));
  }
  return bytes;
}

}  // namespace unit
