// SPDX-License-Identifier: Apache-2.0
//
// The next process to start removes socket files of killed processes; files of living processes
// stay, whatever state the process is in.
#include "control/socket_files.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "control/node.h"
#include "platform/os/net.h"
#include "platform/os/os.h"
#include "platform/os/process.h"
#include "single_thread.h"
#include "unit/support.h"

namespace socket_files_test {
namespace {

using namespace oh;
using unit::is_ok;

Config config_in(const std::string& folder) {
  return unit::config_with({{"ONEHOP_SOCKET_DIR", folder}});
}

std::string name_of(const char* prefix = "onehop-") { return prefix + id_text(*random_id()); }

// The socket file of this process, or of another that will soon be gone.
std::string file_of(Node& node) {
  Address address;
  node.describe(&address);
  return address.unix_path;
}

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

// Leaves a file behind as a killed process does, without its descriptor and its abstract name.
std::string leave_behind(const std::string& folder, const char* prefix = "onehop-") {
  std::string path = folder + "/" + name_of(prefix);
  EXPECT_TRUE(is_ok(listen_on(SocketAddress::unix_path(path))));
  return path;
}

// A process that runs some code, reports it, and lives until it is killed.
class Child {
 public:
  explicit Child(const std::function<bool()>& body) {
    EXPECT_TRUE(wait_until_single_threaded());
    int ends[2];  // not UniqueFd, which a child does not keep
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    fflush(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      alarm(60);
      char well = body() ? 1 : 0;
      if (write(ends[1], &well, 1) != 1) _exit(1);
      while (true) pause();
    }
    close(ends[1]);
    char well = 0;
    EXPECT_EQ(read(ends[0], &well, 1), 1);
    EXPECT_EQ(well, 1);
    close(ends[0]);
  }
  ~Child() { end(); }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  void stop() const {
    EXPECT_EQ(kill(pid_, SIGSTOP), 0);
    EXPECT_EQ(waitpid(pid_, nullptr, WUNTRACED), pid_);
  }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = 0;
  }

 private:
  pid_t pid_ = 0;
};

// Starts a node, which sweeps, until the condition holds.
void sweep_until(const std::string& folder, const std::function<bool()>& swept) {
  Result<std::shared_ptr<Node>> node = Node::get(config_in(folder));
  ASSERT_TRUE(is_ok(node));
  EXPECT_TRUE(unit::eventually(swept));
}

bool start_node(const std::string& folder) {
  // Lives until the process is killed.
  static std::shared_ptr<Node>* const kept = new std::shared_ptr<Node>;
  Result<std::shared_ptr<Node>> node = Node::get(config_in(folder));
  if (!node.ok()) return false;
  *kept = *node;
  return exists(file_of(**node));
}

TEST(SocketFilesTest, FilesOfKilledProcessesGo) {
  unit::TempDir folder;
  {
    std::vector<std::unique_ptr<Child>> children;
    for (int i = 0; i < 3; ++i) {
      children.push_back(std::make_unique<Child>([&] { return start_node(folder.path()); }));
    }
    // None of them may sweep while the others are killed.
    for (const std::unique_ptr<Child>& child : children) child->stop();
  }
  ASSERT_EQ(folder.entries(), 3u);
  sweep_until(folder.path(), [&] { return folder.entries() == 1; });  // only ours is left
  EXPECT_TRUE(unit::eventually([&] { return folder.entries() == 0; }));
}

TEST(SocketFilesTest, ThousandsOfThemGo) {
  unit::TempDir folder;
  for (int i = 0; i < 3000; ++i) leave_behind(folder.path(), i % 2 ? "onehop-" : "onehop~");
  sweep_until(folder.path(), [&] { return folder.entries() == 1; });
}

// All states that a sweep may meet; the removal of a stale file shows that it has finished.
TEST(SocketFilesTest, LivingProcessesKeepTheirs) {
  unit::TempDir folder;
  Child running([&] { return start_node(folder.path()); });
  Child stopped([&] { return start_node(folder.path()); });
  stopped.stop();
  // Connections are not accepted, so they fill the backlog; in another network namespace, where
  // possible, so that the abstract name cannot be checked.
  const std::string full = name_of();
  Child busy([&] {
    (void)unshare(CLONE_NEWUSER | CLONE_NEWNET);
    int fd = socket(AF_UNIX, SOCK_STREAM, 0);
    SocketAddress address = SocketAddress::unix_path(folder.path() + "/" + full);
    return bind(fd, address.get(), address.size) == 0 && listen(fd, 0) == 0;
  });
  std::vector<UniqueFd> guests;
  while (true) {
    guests.emplace_back(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0));
    SocketAddress address = SocketAddress::unix_path(folder.path() + "/" + full);
    if (connect(guests.back().get(), address.get(), address.size) == 0) continue;
    ASSERT_EQ(errno, EAGAIN);
    break;
  }
  Child elsewhere([&] {
    (void)unshare(CLONE_NEWUSER | CLONE_NEWNET);
    return start_node(folder.path());
  });
  ASSERT_EQ(folder.entries(), 4u);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 200; ++i) leave_behind(folder.path());
    sweep_until(folder.path(), [&] { return folder.entries() == 5; });
    EXPECT_TRUE(unit::eventually([&] { return folder.entries() == 4; }));
  }
  for (Child* child : {&running, &stopped, &busy, &elsewhere}) child->end();
  sweep_until(folder.path(), [&] { return folder.entries() == 1; });
}

// Between bind and listen a file refuses connections, as a stale one does.
TEST(SocketFilesTest, AFileThatIsTakenTooEarlyIsMadeAgain) {
  class Thief final : public Os {
   public:
    explicit Thief(std::string folder) : folder_(std::move(folder)) {}
    int listen(int fd, int backlog) override {
      for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
        if (thefts_ == 0 || !entry.path().filename().string().starts_with("onehop~")) continue;
        --thefts_;
        std::filesystem::remove(entry.path());
      }
      return Os::listen(fd, backlog);
    }
    int thefts_ = 3;

   private:
    std::string folder_;
  };
  unit::TempDir folder;
  Thief thief(folder.path());
  Os* before = os_replace(&thief);
  const std::string name = name_of();
  Result<UniqueFd> fd = listen_on_file(folder.path(), name);
  os_replace(before);
  ASSERT_TRUE(is_ok(fd));
  EXPECT_EQ(thief.thefts_, 0);
  EXPECT_EQ(folder.entries(), 1u);
  EXPECT_TRUE(is_ok(connect_to({SocketAddress::unix_path(folder.path() + "/" + name)},
                               Deadline::after(20 * kSecond))));
}

TEST(SocketFilesTest, NothingElseIsTouched) {
  unit::TempDir folder;
  const std::string& path = folder.path();
  std::ofstream(path + "/" + name_of()) << "a plain file";
  ASSERT_EQ(mkdir((path + "/" + name_of()).c_str(), 0700), 0);
  const std::string odd[] = {"/onehop-", "/onehop-0123", "/another", "/onehop-zzzz"};
  for (const std::string& name : odd) {
    ASSERT_TRUE(is_ok(listen_on(SocketAddress::unix_path(path + name))));
  }
  unit::TempDir other;
  std::string target = leave_behind(other.path());
  ASSERT_EQ(symlink(target.c_str(), (path + "/" + name_of()).c_str()), 0);
  size_t before = folder.entries();
  for (int i = 0; i < 100; ++i) leave_behind(path);
  sweep_until(path, [&] { return folder.entries() == before + 1; });
  EXPECT_TRUE(unit::eventually([&] { return folder.entries() == before; }));
  EXPECT_TRUE(exists(target));
}

TEST(SocketFilesTest, SeveralMaySweepAtOnce) {
  unit::TempDir folder;
  for (int i = 0; i < 1000; ++i) leave_behind(folder.path());
  std::vector<std::unique_ptr<SocketSweep>> sweeps;
  for (int i = 0; i < 4; ++i) sweeps.push_back(SocketSweep::start(folder.path(), [] {}));
  EXPECT_TRUE(unit::eventually([&] { return folder.entries() == 0; }));
}

TEST(SocketFilesTest, AFolderThatCannotBeReadIsLeftAlone) {
  unit::TempDir folder;
  std::string left = leave_behind(folder.path());
  ASSERT_EQ(chmod(folder.path().c_str(), 0333), 0);
  {
    Child child([&] {
      // Root would be allowed to read it.
      if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0) return false;
      return start_node(folder.path());
    });
  }
  EXPECT_TRUE(exists(left));
  ASSERT_EQ(chmod(folder.path().c_str(), 0700), 0);
  EXPECT_EQ(folder.entries(), 2u);
  // Another user's file must not be judged.
  sweep_until(folder.path(), [&] { return !exists(left); });
}

}  // namespace
}  // namespace socket_files_test
