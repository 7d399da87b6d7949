// SPDX-License-Identifier: Apache-2.0
#include "control/socket_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string_view>

#include "base/log.h"
#include "platform/os/net.h"
#include "platform/os/process.h"

namespace oh {
namespace {

constexpr std::string_view kPrefix = "onehop-";
// Prefix of a file before listen().
constexpr std::string_view kNewPrefix = "onehop~";
constexpr size_t kIdDigits = 32;

bool is_socket_name(std::string_view name) {
  if (!name.starts_with(kPrefix) && !name.starts_with(kNewPrefix)) return false;
  name.remove_prefix(kPrefix.size());
  return name.size() == kIdDigits &&
         name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

// Whether only this host uses the file system, so that a refused connection proves that no process
// listens. On a shared file system every host but the owner's refuses the connection.
bool is_of_one_host(int folder) {
  constexpr long kXfs = 0x58465342;
  constexpr long kZfs = 0x2fc12fc1;
  struct statfs status{};
  if (fstatfs(folder, &status) < 0) return false;
  const long kinds[] = {TMPFS_MAGIC,
                        RAMFS_MAGIC,
                        EXT4_SUPER_MAGIC,
                        BTRFS_SUPER_MAGIC,
                        OVERLAYFS_SUPER_MAGIC,
                        F2FS_SUPER_MAGIC,
                        REISERFS_SUPER_MAGIC,
                        kXfs,
                        kZfs};
  return std::ranges::find(kinds, static_cast<long>(status.f_type)) != std::end(kinds);
}

UniqueFd unix_socket() {
  return UniqueFd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// Whether a process in this network namespace has bound the abstract name. The probe does not
// connect, so that process does not notice it.
bool is_bound(const std::string& name) {
  UniqueFd fd = unix_socket();
  SocketAddress address = SocketAddress::unix_abstract(name);
  return fd.valid() && bind(fd.get(), address.get(), address.size) < 0 && errno == EADDRINUSE;
}

// ECONNREFUSED means that no process listens: a full backlog, a stopped process and another user's
// file give other errors.
bool is_refused(const std::string& path) {
  UniqueFd fd = unix_socket();
  SocketAddress address = SocketAddress::unix_path(path);
  return fd.valid() && connect(fd.get(), address.get(), address.size) < 0 && errno == ECONNREFUSED;
}

}  // namespace

Result<UniqueFd> listen_on_file(const std::string& folder, const std::string& name) {
  constexpr int kAttempts = 8;
  const std::string path = folder + "/" + name;
  const std::string fresh =
      folder + "/" + std::string(kNewPrefix) + name.substr(std::min(kPrefix.size(), name.size()));
  for (int attempt = 1;; ++attempt) {
    OH_ASSIGN_OR_RETURN(UniqueFd fd, listen_on(SocketAddress::unix_path(fresh)));
    if (std::rename(fresh.c_str(), path.c_str()) == 0) return fd;
    int failure = errno;
    // Another process swept it as stale between bind() and listen().
    if (failure == ENOENT && attempt < kAttempts) continue;
    unlink(fresh.c_str());
    return Status::from_errno(OH_ERR_SYSTEM, failure, "rename to " + path);
  }
}

std::unique_ptr<SocketSweep> SocketSweep::start(const std::string& folder,
                                                std::function<void()> ended) {
  std::unique_ptr<SocketSweep> sweep(new SocketSweep(folder, std::move(ended)));
  if (!start_thread("onehop-sweep", run, sweep.get(), &sweep->thread_).ok()) return nullptr;
  return sweep;
}

SocketSweep::~SocketSweep() {
  stop_.store(true);
  if (thread_) join_thread(thread_);
}

void SocketSweep::run(void* context) {
  auto* self = static_cast<SocketSweep*>(context);
  self->sweep();
  self->ended_();
}

void SocketSweep::sweep() const {
  std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(folder_.c_str()), closedir);
  if (!entries || !is_of_one_host(dirfd(entries.get()))) return;
  while (dirent* entry = stop_.load() ? nullptr : readdir(entries.get())) {
    if (is_socket_name(entry->d_name)) remove_if_left(dirfd(entries.get()), entry->d_name);
  }
}

// Safe against concurrent sweeps and exiting owners: an id is used once, so a name without an owner
// never gets one. listen_on_file() notices if its new file was removed.
void SocketSweep::remove_if_left(int folder, const char* name) const {
  struct stat status{};
  if (fstatat(folder, name, &status, AT_SYMLINK_NOFOLLOW) < 0) return;
  if (!S_ISSOCK(status.st_mode) || status.st_uid != geteuid()) return;
  std::string_view id = std::string_view(name).substr(kPrefix.size());
  if (is_bound(std::string(kPrefix) + std::string(id))) return;
  if (!is_refused(folder_ + "/" + name)) return;
  if (unlinkat(folder, name, 0) < 0) return;
  OH_LOG(kDebug, "removed %s/%s, which a dead process left", folder_.c_str(), name);
}

}  // namespace oh
