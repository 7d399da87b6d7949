// SPDX-License-Identifier: Apache-2.0
//
// Runs the fake driver's tests, or one role of a test in a child process.
//
// Threading: one thread.
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "support.h"

namespace {

// Roles use EXPECT, which needs an enclosing test.
class RoleTest : public ::testing::Test {
 public:
  explicit RoleTest(const char* role) : role_(role) {}
  void TestBody() override { EXPECT_EQ(fake_test::play(role_, 3), 0); }

 private:
  const char* role_;
};

// A child prints only its failures.
class Failures : public ::testing::EmptyTestEventListener {
  void OnTestPartResult(const ::testing::TestPartResult& result) override {
    if (!result.failed()) return;
    fprintf(stderr, "in a child: %s:%d: %s\n", result.file_name(), result.line_number(),
            result.message());
  }
};

}  // namespace

int main(int count, char** arguments) {
  alarm(240);  // watchdog
  if (count == 3 && strcmp(arguments[1], "--child") == 0) {
    const char* role = arguments[2];
    ::testing::RegisterTest("Child", role, nullptr, nullptr, __FILE__, __LINE__,
                            [role]() -> ::testing::Test* { return new RoleTest(role); });
    char filter[] = "--gtest_filter=Child.*";
    char* options[] = {arguments[0], filter, nullptr};
    int options_count = 2;
    ::testing::InitGoogleTest(&options_count, options);
    auto& listeners = ::testing::UnitTest::GetInstance()->listeners();
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures);
    return RUN_ALL_TESTS();
  }
  ::testing::InitGoogleTest(&count, arguments);
  char state[] = "/tmp/fake_cuda_state_XXXXXX";
  const int fd = mkstemp(state);
  if (fd < 0) return 2;
  close(fd);
  setenv("FAKE_CUDA_STATE", state, 1);
  setenv("FAKE_CUDA", "devices=2,memory=256M", 1);
  unsetenv("CUDA_VISIBLE_DEVICES");
  ::testing::AddGlobalTestEnvironment(fake_test::new_leak_check());
  const int code = RUN_ALL_TESTS();
  unlink(state);
  return code;
}
