// SPDX-License-Identifier: Apache-2.0
//
// Socket files, by which processes with separate network namespaces reach each other. While a
// process lives, its file "onehop-<id>" is listened on; a killed process leaves it behind, and the
// next one removes it.
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

// Listens on the file `name` of the folder. It appears under this name once it is listened on:
// a refused connection to it means that its process is gone.
Result<UniqueFd> listen_on_file(const std::string& folder, const std::string& name);

// A thread that removes this user's socket files in a folder on which no process listens: removing
// many takes a busy disk a while. Destroying it ends the thread.
class SocketSweep {
 public:
  // Null where there can be no thread. `ended` is the thread's last call: join it then.
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
