// SPDX-License-Identifier: Apache-2.0
#include "conformance/sides.h"

#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <thread>

#include "capi/handles.h"
#include "platform/ucx/library.h"
#include "single_thread.h"

namespace conformance {
namespace {

constexpr unsigned kWatchdogSeconds = 60;

void write_all(int fd, const void* data, size_t size) {
  const auto* at = static_cast<const uint8_t*>(data);
  while (size > 0) {
    ssize_t written = write(fd, at, size);
    ASSERT_GT(written, 0) << "the other side is gone";
    at += written;
    size -= static_cast<size_t>(written);
  }
}

void read_all(int fd, void* data, size_t size) {
  auto* at = static_cast<uint8_t*>(data);
  while (size > 0) {
    ssize_t got = read(fd, at, size);
    ASSERT_GT(got, 0) << "the other side is gone";
    at += got;
    size -= static_cast<size_t>(got);
  }
}

void play(const LinkKind& kind, int number, int fd, int other, const Role& role) {
  Side side(kind, number, fd, fd);
  side.set_other_process(other);
  try {
    side.connect();
    role(side);
    side.sync();
    side.disconnect();
  } catch (const std::exception& failure) {
    ADD_FAILURE() << "side " << number << ": " << failure.what();
  }
}

}  // namespace

void meet_threads(const onehop::Peer& peer) {
  (void)peer.stats();
  if (oh::UcxChannel* ucx = peer.get()->peer->link().ucx) (void)ucx->worker().holds();
}

void Side::sync() {
  if (peer_) meet_threads(*peer_);
  tell_number(42);
  ASSERT_EQ(hear_number(), 42);
  if (peer_) meet_threads(*peer_);
}

void Side::tell(const onehop::Bytes& bytes) {
  tell_number(static_cast<int64_t>(bytes.size()));
  write_all(out_, bytes.data(), bytes.size());
}

onehop::Bytes Side::hear() {
  onehop::Bytes bytes(static_cast<size_t>(hear_number()));
  read_all(in_, bytes.data(), bytes.size());
  return bytes;
}

void Side::tell_number(int64_t number) { write_all(out_, &number, sizeof(number)); }

int64_t Side::hear_number() {
  int64_t number = -1;
  read_all(in_, &number, sizeof(number));
  return number;
}

bool Side::was_told() const {
  pollfd waiting{in_, POLLIN, 0};
  return poll(&waiting, 1, 0) > 0;
}

Buffer Side::buffer(size_t size) const {
  if (kind_.device[number_] >= 0) use_device(kind_.driver, kind_.device[number_]);
  return Buffer(size, kind_.memory[number_]);
}

void Side::connect() {
  // Releasing a link waits for kernels of this process, and those of the next link may wait for us.
  disconnect();
  oh_endpoint_options options{};
  options.struct_size = sizeof(options);
  std::string device;
  if (kind_.device[number_] >= 0) {
    device = "cuda:" + std::to_string(use_device(kind_.driver, kind_.device[number_]));
    options.device = device.c_str();
  }
  endpoint_ = std::make_unique<onehop::Endpoint>(&options);
  if (number_ == 0) {
    peer_ = std::make_unique<onehop::Peer>(endpoint_->connect(hear()));
  } else {
    tell(endpoint_->address());
    peer_ = std::make_unique<onehop::Peer>(endpoint_->accept());
  }
}

void Side::disconnect() {
  peer_.reset();
  endpoint_.reset();
}

void Side::disconnect_endpoint_first() {
  endpoint_.reset();
  peer_.reset();
}

void Side::drop_peer() {
  peer_->close();
  peer_.reset();
}

void Side::release_peer() { peer_.reset(); }

std::string name_of(const ::testing::TestParamInfo<LinkKind>& test) { return test.param.name; }

// Checked in a process of its own.
bool has_ucx() {
  static const bool found = [] {
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) _exit(oh::ucx::Library::open("").ok() ? 0 : 1);
    int status = 0;
    return waitpid(child, &status, 0) == child && status == 0;
  }();
  return found;
}

namespace {

// The environment of a test; restored when the test ends.
class KindScope {
 public:
  explicit KindScope(const LinkKind& kind) : kind_(kind) {
    signal(SIGPIPE, SIG_IGN);
    for (const auto& [name, value] : kind.env) setenv(name.c_str(), value.c_str(), 1);
    alarm(kWatchdogSeconds);
    if (kind.on_gpu()) {
      ::testing::Test::RecordProperty("gpus", kind.driver.empty() ? "real" : "fake");
    }
  }
  ~KindScope() {
    alarm(0);
    for (const auto& [name, value] : kind_.env) unsetenv(name.c_str());
  }

 private:
  const LinkKind& kind_;
};

pid_t fork_side(const LinkKind& kind, int number, const int fds[2], const Role& role) {
  EXPECT_TRUE(wait_until_single_threaded());
  fflush(nullptr);
  pid_t child = fork();
  if (child != 0) return child;
  close(fds[1 - number]);
  alarm(kWatchdogSeconds);
  play(kind, number, fds[number], getppid(), role);
  fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

// UCX does not survive fork() either, and the process that runs the tests forks again.
bool in_fresh_process(const LinkKind& kind) { return kind.path == OH_PATH_UCX; }
constexpr const char* kNoUcx = "no UCX here: libucp.so.0 of 1.13 or newer";

void expect_success(pid_t child, const char* who) {
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << who << " failed: " << status;
}

// Runs `work` in a process of its own; the test fails if it fails.
void run_fresh(const std::function<void()>& work) {
  if (!has_ucx()) GTEST_SKIP() << kNoUcx;
  EXPECT_TRUE(wait_until_single_threaded());
  fflush(nullptr);
  alarm(2 * kWatchdogSeconds);  // the child's watchdog comes first
  pid_t child = fork();
  if (child == 0) {
    work();
    fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  expect_success(child, "the process of side 0");
  alarm(0);
}

void pair_up(const LinkKind& kind, const Role& first, const Role& second) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  KindScope scope(kind);
  if (kind.processes) {
    pid_t child = fork_side(kind, 1, fds, second);
    ASSERT_GT(child, 0);
    // The children's watchdogs come first.
    if (kind.on_gpu()) alarm(2 * kWatchdogSeconds);
    // CUDA cannot be used after a fork, so a process that has used it must not fork.
    pid_t self = kind.on_gpu() ? fork_side(kind, 0, fds, first) : 0;
    close(fds[1]);
    if (self == 0) play(kind, 0, fds[0], child, first);
    close(fds[0]);
    expect_success(child, "side 1");
    if (self) expect_success(self, "side 0");
    return;
  }
  auto both = [&] {
    std::thread other([&] { play(kind, 1, fds[1], 0, second); });
    play(kind, 0, fds[0], 0, first);
    other.join();
  };
  if (kind.on_gpu()) {
    EXPECT_TRUE(wait_until_single_threaded());
    alarm(2 * kWatchdogSeconds);  // the child's watchdog comes first
    fflush(nullptr);
    pid_t child = fork();
    if (child == 0) {
      alarm(kWatchdogSeconds);
      both();
      fflush(nullptr);
      _exit(::testing::Test::HasFailure() ? 1 : 0);
    }
    expect_success(child, "the process of both sides");
  } else {
    both();
  }
  close(fds[0]);
  close(fds[1]);
}

void face_victim(const LinkKind& kind, const Role& survivor, const Role& victim) {
  int fds[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
  KindScope scope(kind);
  pid_t child = fork_side(kind, 1, fds, victim);
  ASSERT_GT(child, 0);
  close(fds[1]);
  Side side(kind, 0, fds[0], fds[0]);
  side.set_other_process(child);
  try {
    side.connect();
    survivor(side);
    side.disconnect();
  } catch (const std::exception& failure) {
    ADD_FAILURE() << "the survivor: " << failure.what();
  }
  kill(child, SIGKILL);
  close(fds[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) != 0) << "the victim failed: " << status;
}

}  // namespace

void run_pair(const LinkKind& kind, const Role& first, const Role& second) {
  if (!in_fresh_process(kind)) return pair_up(kind, first, second);
  run_fresh([&] { pair_up(kind, first, second); });
}

void run_with_victim(const LinkKind& kind, const Role& survivor, const Role& victim) {
  if (!in_fresh_process(kind)) return face_victim(kind, survivor, victim);
  run_fresh([&] { face_victim(kind, survivor, victim); });
}

namespace {

// Forks a child that runs `work`; the test fails there if an exception is thrown.
pid_t fork_work(const std::function<void()>& work) {
  EXPECT_TRUE(wait_until_single_threaded());
  fflush(nullptr);
  pid_t child = fork();
  if (child != 0) return child;
  alarm(kWatchdogSeconds);
  try {
    work();
  } catch (const std::exception& failure) {
    ADD_FAILURE() << failure.what();
  }
  fflush(nullptr);
  _exit(::testing::Test::HasFailure() ? 1 : 0);
}

struct Channel {
  Channel() { EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0); }
  ~Channel() {
    for (int end : ends) close(end);
  }
  int ends[2] = {-1, -1};
};

}  // namespace

void run_apart(const LinkKind& kind, const Role& first, const Role& second) {
  if (in_fresh_process(kind) && !has_ucx()) GTEST_SKIP() << kNoUcx;
  KindScope scope(kind);
  alarm(5 * kWatchdogSeconds);  // the children have their own watchdogs, which may be extended
  pid_t children[2];
  {
    Channel channel;
    for (int number : {1, 0}) {
      children[number] = fork_work([&, number] {
        close(channel.ends[1 - number]);
        Side side(kind, number, channel.ends[number], channel.ends[number]);
        side.set_other_process(number == 0 ? children[1] : 0);
        (number == 0 ? first : second)(side);
      });
    }
  }
  expect_success(children[1], "side 1");
  expect_success(children[0], "side 0");
}

void run_apart_with_victim(const LinkKind& kind, const Survivor& survivor, const Role& victim,
                           const Role& next) {
  if (in_fresh_process(kind) && !has_ucx()) GTEST_SKIP() << kNoUcx;
  KindScope scope(kind);
  alarm(2 * kWatchdogSeconds);  // the children's watchdogs come first
  pid_t others[2];
  pid_t first;
  {
    Channel channels[2];
    for (int i : {0, 1}) {
      others[i] = fork_work([&, i] {
        close(channels[i].ends[0]);
        for (int end : channels[1 - i].ends) close(end);
        Side side(kind, 1, channels[i].ends[1], channels[i].ends[1]);
        (i == 0 ? victim : next)(side);
      });
    }
    first = fork_work([&] {
      for (Channel& channel : channels) close(channel.ends[1]);
      Side to_victim(kind, 0, channels[0].ends[0], channels[0].ends[0]);
      Side to_next(kind, 0, channels[1].ends[0], channels[1].ends[0]);
      to_victim.set_other_process(others[0]);
      survivor(to_victim, to_next);
    });
  }
  expect_success(first, "the survivor");
  kill(others[0], SIGKILL);  // the survivor may have failed before doing it
  expect_success(others[1], "the next peer");
  int status = 0;
  ASSERT_EQ(waitpid(others[0], &status, 0), others[0]);
  EXPECT_FALSE(WIFEXITED(status) && WEXITSTATUS(status) != 0) << "the victim failed: " << status;
}

void run_ranks(const LinkKind& kind, uint32_t size, const RankRole& role) {
  constexpr size_t kMostId = 4096;
  KindScope scope(kind);
  alarm(5 * kWatchdogSeconds);  // the children's watchdogs come first
  int ends[2];                  // preserves messages: each rank takes one
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, ends), 0);
  std::vector<pid_t> children;
  for (uint32_t rank = 0; rank < size; ++rank) {
    children.push_back(fork_work([&, rank] {
      close(ends[rank == 0 ? 1 : 0]);
      onehop::Bytes id(kMostId);
      if (rank == 0) {
        id = onehop::unique_id();
        for (uint32_t other = 1; other < size; ++other) {
          ASSERT_EQ(write(ends[0], id.data(), id.size()), static_cast<ssize_t>(id.size()));
        }
      } else {
        const ssize_t got = read(ends[1], id.data(), id.size());
        ASSERT_GT(got, 0) << "rank 0 gave no id";
        id.resize(static_cast<size_t>(got));
      }
      role(rank, id);
    }));
  }
  for (int end : ends) close(end);
  for (uint32_t rank = 0; rank < size; ++rank) {
    expect_success(children[rank], ("rank " + std::to_string(rank)).c_str());
  }
}

namespace {
bool is_stopped(const std::filesystem::path& thread) {
  std::ifstream file(thread / "stat");
  std::string text((std::istreambuf_iterator<char>(file)), {});
  size_t name_end = text.rfind(')');
  // A thread that has ended meanwhile has no text.
  return name_end == std::string::npos || text.compare(name_end, 3, ") T") == 0;
}
}  // namespace

void await_stopped(int process) {
  const std::filesystem::path threads = "/proc/" + std::to_string(process) + "/task";
  auto stopped = [&] {
    std::error_code ended;
    for (const auto& thread : std::filesystem::directory_iterator(threads, ended)) {
      if (!is_stopped(thread.path())) return false;
    }
    return true;
  };
  while (!stopped()) std::this_thread::yield();
}

bool eventually(const std::function<bool()>& condition) {
  auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace conformance
