// SPDX-License-Identifier: Apache-2.0
#include "unit/fake_gpu.h"

#include <fcntl.h>
#include <spawn.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <string_view>

namespace unit {

FakeGpu::FakeGpu() {
  static TempDir* const session = getenv("FAKE_CUDA_STATE") ? nullptr : new TempDir;
  if (session) {
    setenv("FAKE_CUDA_STATE", (session->path() + "/state").c_str(), 1);
    static const pid_t owner = getpid();
    atexit([] {
      if (getpid() == owner) delete session;  // not a child of fork()
    });
  }
  setenv("FAKE_CUDA", "devices=2,memory=256M,p2p=all", 1);
  oh::Result<const oh::cuda::Driver*> opened = oh::cuda::Driver::open(FAKE_CUDA_LIBRARY);
  if (!opened.ok()) {
    fprintf(stderr, "no fake driver: %s\n", opened.status().text().c_str());
    abort();
  }
  driver = *opened;
#define OH_UNIT_RESOLVE(name, symbol, parameters) \
  name = reinterpret_cast<decltype(name)>(dlsym(driver->handle, #symbol));
  OH_CUDA_TEST_FUNCTIONS(OH_UNIT_RESOLVE)
#undef OH_UNIT_RESOLVE
#define OH_UNIT_RESOLVE(name) \
  name = reinterpret_cast<decltype(name)>(dlsym(driver->handle, "fake_cuda_" #name));
  OH_UNIT_CONTROL(OH_UNIT_RESOLVE)
#undef OH_UNIT_RESOLVE
}

std::string text_of(const FakeCudaCounts& c) {
  return oh::strf(
      "contexts %zu, streams %zu, events %zu, allocations %zu, imports %zu, registrations %zu, "
      "reservations %zu, mappings %zu, handles %zu, pools %zu, graphs %zu, graph execs %zu",
      c.contexts, c.streams, c.events, c.allocations, c.imports, c.host_registrations,
      c.reservations, c.mappings, c.vmm_handles, c.pools, c.graphs, c.graph_execs);
}

::testing::AssertionResult run_child(const std::string& test, const std::string& text,
                                     const std::vector<oh::UniqueFd>& fds) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  for (size_t i = 0; i < fds.size(); ++i) {
    posix_spawn_file_actions_adddup2(&actions, fds[i].get(), kFirstFd + static_cast<int>(i));
  }
  std::string filter = "--gtest_filter=" + test;
  std::string program = "/proc/self/exe";
  char all[] = "--gtest_also_run_disabled_tests";
  char brief[] = "--gtest_brief=1";
  char* arguments[] = {program.data(), filter.data(), all, brief, nullptr};
  // Without GoogleTest's sharding and report settings of the parent.
  std::vector<std::string> variables = {std::string(kChildText) + "=" + text};
  for (char** entry = environ; *entry != nullptr; ++entry) {
    if (!std::string_view(*entry).starts_with("GTEST_")) variables.emplace_back(*entry);
  }
  std::vector<char*> environment;
  for (std::string& variable : variables) environment.push_back(variable.data());
  environment.push_back(nullptr);
  pid_t pid = 0;
  int failed = posix_spawn(&pid, program.c_str(), &actions, nullptr, arguments, environment.data());
  posix_spawn_file_actions_destroy(&actions);
  if (failed) return ::testing::AssertionFailure() << "posix_spawn: error " << failed;
  int status = 0;
  if (waitpid(pid, &status, 0) != pid || status != 0) {
    return ::testing::AssertionFailure() << test << " in a child ended with status " << status;
  }
  return ::testing::AssertionSuccess();
}

}  // namespace unit
