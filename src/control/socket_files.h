// SPDX-License-Identifier: Apache-2.0
//
// Socket files, over which processes in separate network namespaces connect. A process listens on
// its file "onehop-<id>" while it lives. A killed process leaves its file behind; the next process
// removes it.
//
// Threading: any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "base/status.h"
#include "platform/os/handles.h"

namespace oh {

// Listens on the file `name` in the folder. The file gets this name only after listen(), so a
// refused connection means that the process has ended.
Result<UniqueFd> listen_on_file(const std::string& folder, const std::string& name);

// A thread that removes this user's stale socket files (no process listens) from a folder; removing
// many of them on a busy disk takes time. The destructor stops and joins the thread.
class SocketSweep {
 public:
  // Null if no thread can be started. The thread calls `ended` last; then destroy the sweep.
  static std::unique_ptr<SocketSweep> start(const std::string& folder, std::function<void()> ended);
  ~SocketSweep();
  SocketSweep(const SocketSweep&) = delete;
  SocketSweep& operator=(const SocketSweep&) = delete;

 private:
  SocketSweep(const std::string& folder, std::function<void()> ended)
      : folder_(folder), ended_(std::move(ended)) {}
  static void run(void* context);
  void sweep() const;
  void remove_if_left(int folder, const char* name) const;

  const std::string folder_;
  const std::function<void()> ended_;
  std::atomic<bool> stop_{false};
  unsigned long thread_ = 0;
};

}  // namespace oh
