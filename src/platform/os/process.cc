// SPDX-License-Identifier: Apache-2.0
#include "platform/os/process.h"

#include <pthread.h>
#include <signal.h>

#include <memory>
#include <mutex>

#include "platform/os/fork.h"
#include "platform/os/os.h"

namespace oh {

std::string id_text(const Id& id) {
  std::string text;
  for (uint8_t byte : id) text += strf("%02x", byte);
  return text;
}

Result<Id> random_id() {
  Id id;
  int result = os().getrandom(id.data(), id.size());
  if (result < 0) return Status::from_errno(OH_ERR_SYSTEM, -result, "getrandom");
  return id;
}

Result<Id> process_identity() {
  struct Known {
    std::mutex mutex;
    bool made = false;
    Id id{};
  };
  Known& known = of_this_process([] { return new Known; });
  std::lock_guard lock(known.mutex);
  if (!known.made) {
    OH_ASSIGN_OR_RETURN(known.id, random_id());
    known.made = true;
  }
  return known.id;
}

namespace {
struct Start {
  ThreadBody body;
  void* context;
};
void* run(void* argument) {
  std::unique_ptr<Start> start(static_cast<Start*>(argument));
  start->body(start->context);
  return nullptr;
}
}  // namespace

Status start_thread(const char* name, ThreadBody body, void* context, unsigned long* thread) {
  sigset_t all;
  sigset_t former;
  sigfillset(&all);
  // Synchronous faults of the thread must reach their handlers.
  for (int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP}) sigdelset(&all, fault);
  pthread_sigmask(SIG_SETMASK, &all, &former);
  auto start = std::make_unique<Start>(Start{body, context});
  pthread_t made;
  int failure = pthread_create(&made, nullptr, run, start.get());
  pthread_sigmask(SIG_SETMASK, &former, nullptr);
  if (failure != 0) {
    return Status::from_errno(OH_ERR_SYSTEM, failure, strf("starting the thread %s", name));
  }
  static_cast<void>(start.release());  // owned by the thread
  pthread_setname_np(made, name);
  *thread = made;
  return {};
}

void join_thread(unsigned long thread) { pthread_join(thread, nullptr); }
void detach_thread(unsigned long thread) { pthread_detach(thread); }

}  // namespace oh
