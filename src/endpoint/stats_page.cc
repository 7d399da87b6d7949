// SPDX-License-Identifier: Apache-2.0
#include "endpoint/stats_page.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "endpoint/endpoint.h"
#include "platform/os/os.h"
#include "platform/os/replace_file.h"

namespace oh {
namespace {

constexpr int64_t kPeriod = 250 * kMillisecond;
constexpr time_t kLeftBehind = 3600;  // seconds

// Start time of this process in clock ticks since boot: field 22 of its stat. With the process id
// and its namespace it identifies whether the process still exists.
std::string start_ticks() {
  char text[1024] = {};
  if (os().read_file("/proc/self/stat", text, sizeof(text) - 1) <= 0) return "0";
  const std::string_view all(text);
  // The process name, in parentheses, may contain blanks and parentheses.
  size_t at = all.rfind(')');
  for (int field = 2; field < 22 && at != std::string_view::npos; ++field) {
    at = all.find(' ', at + 1);
  }
  if (at == std::string_view::npos) return "0";
  return std::string(all.substr(at + 1, all.find(' ', at + 1) - at - 1));
}

uint64_t pid_namespace() {
  struct stat status{};
  return stat("/proc/self/ns/pid", &status) == 0 ? status.st_ino : 0;
}

void remove_left_behind(const std::string& folder) {
  std::unique_ptr<DIR, int (*)(DIR*)> entries(opendir(folder.c_str()), closedir);
  if (!entries) return;
  while (dirent* entry = readdir(entries.get())) {
    struct stat status{};
    if (!std::string_view(entry->d_name).starts_with(StatsPage::kPrefix)) continue;
    if (fstatat(dirfd(entries.get()), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) < 0) continue;
    const bool ours = S_ISREG(status.st_mode) && status.st_uid == geteuid();
    if (!ours || time(nullptr) - status.st_mtime < kLeftBehind) continue;
    unlinkat(dirfd(entries.get()), entry->d_name, 0);
  }
}

const char* state_text(const Link& link) {
  switch (link.state()) {
    case Link::State::kOpen:
      return "open";
    case Link::State::kLost:
      return "lost";
    case Link::State::kClosed:
      return "closed";
  }
  return "unknown";
}

// {"sent": [operations, bytes], "received": ...} for each path that has carried anything.
std::string paths_text(const Stats& stats) {
  std::string text = "{";
  for (int i = 0; i < OH_PATH_COUNT; ++i) {
    const auto path = static_cast<oh_path>(i);
    const PathCount sent = stats.sent(path);
    const PathCount received = stats.received(path);
    if (sent.operations == 0 && received.operations == 0) continue;
    text += strf("%s\"%s\":{\"sent\":[%llu,%llu],\"received\":[%llu,%llu]}",
                 text.size() > 1 ? "," : "", oh_path_name(path), ull(sent.operations),
                 ull(sent.bytes), ull(received.operations), ull(received.bytes));
  }
  return text + "}";
}

std::string peer_text(Peer& peer, int64_t now) {
  Stats stats;
  peer.add_to(&stats);
  Link& link = peer.link();
  int64_t oldest = 0;
  {
    LinkGuard guard(link);
    if (link.posted_times) oldest = link.posted_times->oldest();
  }
  return strf(
      "{\"id\":%llu,\"name\":%s,\"rank\":%lld,\"state\":\"%s\",\"path\":\"%s\",\"in_flight\":%llu,"
      "\"oldest_us\":%lld,\"paths\":%s}",
      ull(link.id), json_text(link.name).c_str(), static_cast<long long>(link.rank),
      state_text(link), oh_path_name(link.path), ull(stats.outstanding),
      static_cast<long long>(oldest ? (now - oldest) / kMicrosecond : 0),
      paths_text(stats).c_str());
}

}  // namespace

Status StatsPage::start() {
  const std::string& folder = endpoint_.config().socket_dir;
  const std::string endpoint = id_text(endpoint_.own_address().endpoint);
  remove_left_behind(folder);
  about_ = strf(
      "{\"version\":1,\"pid\":%d,\"pid_namespace\":%llu,\"start_ticks\":%s,\"process\":%s,"
      "\"endpoint\":\"%s\"",
      getpid(), ull(pid_namespace()), start_ticks().c_str(),
      json_text(endpoint_.own_address().label).c_str(), endpoint.c_str());
  path_ = strf("%s/%s%d.%s", folder.c_str(), kPrefix, getpid(), endpoint.c_str());
  OH_RETURN_IF_ERROR(write());
  MutexLock lock(mutex_);
  Status started = start_thread("onehop-top", run, this, &thread_);
  if (!started.ok()) unlink(path_.c_str());
  return started;
}

void StatsPage::stop() {
  unsigned long thread = 0;
  {
    MutexLock lock(mutex_);
    thread = std::exchange(thread_, 0);
  }
  if (!thread) return;
  stop_.store(1);
  os().futex_wake(reinterpret_cast<uint32_t*>(&stop_));
  join_thread(thread);
  unlink(path_.c_str());
}

std::string StatsPage::text() const {
  const int64_t now = now_ns();
  std::string text =
      about_ + strf(",\"time_us\":%lld,\"peers\":[", static_cast<long long>(now / kMicrosecond));
  bool any = false;
  endpoint_.for_each_peer([&](Peer& peer) {
    text += std::exchange(any, true) ? ",\n" : "\n";
    text += peer_text(peer, now);
  });
  return text + "]}\n";
}

void StatsPage::run(void* context) { static_cast<StatsPage*>(context)->loop(); }

void StatsPage::loop() {
  bool told = false;
  while (!stop_.load()) {
    os().futex_wait(reinterpret_cast<uint32_t*>(&stop_), 0, kPeriod);
    Status status = write();
    if (status.ok() || std::exchange(told, true)) continue;
    OH_LOG(kWarn, "%s", status.text().c_str());
  }
}

Status StatsPage::write() const {
  return replace_file(path_, 0600, "the page of ONEHOP_TOP=on",
                      [page = text()](FILE* file) { std::fputs(page.c_str(), file); });
}

}  // namespace oh
