// SPDX-License-Identifier: Apache-2.0
#include "platform/os/process.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "platform/os/fork.h"
#include "platform/os/message_socket.h"
#include "unit/faulty_os.h"
#include "unit/support.h"

namespace process_test {
namespace {

using namespace oh;
using unit::Call;
using unit::fails_with;
using unit::FaultyOs;
using unit::is_ok;

TEST(ProcessTest, IdsAreDistinctAndHexadecimal) {
  std::set<Id> ids;
  for (int i = 0; i < 100; ++i) {
    Result<Id> id = random_id();
    ASSERT_TRUE(is_ok(id));
    EXPECT_TRUE(ids.insert(*id).second);
  }
  Id id{};
  id[0] = 0xab;
  id[15] = 0x01;
  EXPECT_EQ(id_text(id), "ab000000000000000000000000000001");
}

TEST(ProcessTest, WithoutRandomNumbersThereIsNoId) {
  FaultyOs faulty;
  faulty.arm(Call::getrandom, 0, EAGAIN);
  EXPECT_TRUE(fails_with(random_id(), OH_ERR_SYSTEM, "getrandom: EAGAIN"));
}

// Runs `body` in a child; returns the child's exit code, which is the result of `body`.
template <typename Body>
int in_child(Body body) {
  pid_t child = fork();
  if (child == 0) _exit(body());
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << status;
  return WEXITSTATUS(status);
}

TEST(ProcessTest, AForkedChildIsSomebodyElse) {
  fork_watch();
  Result<Id> mine = process_identity();
  ASSERT_TRUE(is_ok(mine));
  EXPECT_EQ(*process_identity(), *mine);
  uint32_t generation = fork_generation();
  EXPECT_EQ(in_child([&] {
              Result<Id> id = process_identity();
              return id.ok() && *id != *mine && *process_identity() == *id &&
                     fork_generation() == generation + 1;
            }),
            1);
  EXPECT_EQ(fork_generation(), generation);
  EXPECT_EQ(*process_identity(), *mine);
}

TEST(ForkTest, AChildKeepsNoneOfOurDescriptorsOpen) {
  auto [one, two] = unit::socket_pair();
  MessageSocket reader(std::move(two), 100);
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  pid_t child = fork();
  if (child == 0) {
    char byte = 0;
    // The child's copies were closed: the numbers are free, and nothing is closed twice later.
    int again = dup(ready[0]);
    bool reused = again == one.get() || again == reader.fd() || again < one.get();
    one.reset();
    bool kept = fcntl(again, F_GETFD) >= 0;
    close(ready[1]);
    [[maybe_unused]] ssize_t got = read(ready[0], &byte, 1);
    _exit(reused && kept ? 0 : 1);
  }
  // The child is alive, but the peer sees at once that this end was closed.
  one.reset();
  EXPECT_TRUE(
      fails_with(reader.receive_until(Deadline::after(20 * kSecond), "the end"), OH_ERR_PEER_LOST));
  close(ready[1]);
  close(ready[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
}

TEST(ForkTest, AChildCanUseTheLibraryAnew) {
  EXPECT_EQ(in_child([] {
              auto [one, two] = unit::socket_pair();
              MessageSocket out(std::move(one), 100);
              MessageSocket in(std::move(two), 100);
              return out.send(1, as_bytes("x")).ok() && in.receive().ok() ? 7 : 1;
            }),
            7);
}

TEST(ThreadTest, RunsWithSignalsBlockedAndIsJoined) {
  struct Seen {
    sigset_t mask;
    char name[16] = "";
    bool ran = false;
  } seen;
  unsigned long thread = 0;
  ASSERT_TRUE(is_ok(start_thread(
      "oh-unit",
      [](void* context) {
        auto* out = static_cast<Seen*>(context);
        pthread_sigmask(SIG_SETMASK, nullptr, &out->mask);
        out->ran = true;
      },
      &seen, &thread)));
  join_thread(thread);
  ASSERT_TRUE(seen.ran);
  for (int blocked : {SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1}) {
    EXPECT_EQ(sigismember(&seen.mask, blocked), 1) << blocked;
  }
  for (int open : {SIGSEGV, SIGBUS, SIGABRT}) EXPECT_EQ(sigismember(&seen.mask, open), 0) << open;
  // The caller's signal mask is unchanged.
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  EXPECT_EQ(sigismember(&mine, SIGINT), 0);
}

}  // namespace
}  // namespace process_test
