// SPDX-License-Identifier: Apache-2.0
//
// Each driver call that onehop makes fails once: every operation succeeds over another path or
// fails with a status that names the call, and afterwards the endpoint works and nothing leaks.
#include <signal.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>

#include "base/sync.h"
#include "conformance/gpu_script.h"
#include "platform/cuda/abi.h"
#include "sanitizers.h"

namespace conformance::gpu_faults {
namespace {

using namespace std::chrono_literals;

constexpr const char* kSymbols[] = {
#define CONFORMANCE_SYMBOL(name, symbol, parameters) #symbol,
    OH_CUDA_FUNCTIONS(CONFORMANCE_SYMBOL)
#undef CONFORMANCE_SYMBOL
};

// The n-th call may belong to any thread or step, including the creation of a link.
const std::set<std::string> kBeginsEveryCall = {"cuCtxGetCurrent", "cuCtxPushCurrent_v2",
                                                "cuThreadExchangeStreamCaptureMode"};

// Calls that release a resource, or that everything depends on: a resource that could not be
// released stays.
const std::set<std::string> kGiveBack = {"cuStreamDestroy_v2",
                                         "cuEventDestroy_v2",
                                         "cuMemHostUnregister",
                                         "cuIpcCloseMemHandle",
                                         "cuMemRelease",
                                         "cuMemAddressFree",
                                         "cuMemUnmap",
                                         "cuMemPoolDestroy",
                                         "cuDevicePrimaryCtxRelease_v2",
                                         "cuCtxPopCurrent_v2",
                                         "cuMemFree_v2",
                                         "cuCtxGetCurrent",
                                         "cuCtxPushCurrent_v2",
                                         "cuThreadExchangeStreamCaptureMode"};

struct Case {
  std::string symbol;
  uint64_t nth;
  int code;
  std::string text() const {
    return symbol + ", call " + std::to_string(nth) + ", code " + std::to_string(code);
  }
};

// The current case, for when the process hangs or crashes.
char g_case[256];
void say_case(int number) {
  (void)!write(STDERR_FILENO, g_case, strlen(g_case));
  signal(number, SIG_DFL);
  raise(number);
}

int code_for(const std::string& symbol, uint64_t nth) {
  constexpr int kCodes[] = {801, 2, 400, 1, 201};
  int code = kCodes[nth % std::size(kCodes)];
  // These codes state that a pointer is host memory, and that our context is lost for good.
  bool answer = (symbol == "cuPointerGetAttributes" && (code == 1 || code == 201)) ||
                (symbol == "cuCtxPushCurrent_v2" && code == 201);
  return answer ? 400 : code;
}

// Returns at most `most` of the calls, evenly spread.
std::vector<uint64_t> spread(uint64_t calls, uint64_t most) {
  std::vector<uint64_t> chosen;
  uint64_t count = std::min(calls, most);
  for (uint64_t i = 0; i < count; ++i) {
    chosen.push_back(count == 1 ? 1 : 1 + i * (calls - 1) / (count - 1));
  }
  return chosen;
}

using Calls = std::map<std::string, uint64_t>;
Calls calls_now() {
  Calls calls;
  for (const char* symbol : kSymbols) calls[symbol] = fake_driver().calls(symbol);
  return calls;
}

// Runs a whole life without failures; returns the number of calls by entry point.
Calls clean_life(Subject& subject) {
  Calls before = calls_now();
  subject.begin();
  subject.exchange();
  subject.close();
  EXPECT_TRUE(subject.failures().empty());
  Calls made = calls_now();
  for (auto& [symbol, count] : made) count -= before[symbol];
  return made;
}

struct Tally {
  int struck = 0;
  int failed = 0;
};

void life_with(Subject& subject, const Case& what, const Open& before, Tally& tally) {
  SCOPED_TRACE(what.text());
  snprintf(g_case, sizeof(g_case), "it ended with: %s\n", what.text().c_str());
  alarm(30);
  uint64_t calls = fake_driver().calls(what.symbol.c_str());
  ASSERT_EQ(fake_driver().fail(what.symbol.c_str(), what.nth, what.code), 0);
  subject.begin();
  subject.exchange();
  bool struck = fake_driver().calls(what.symbol.c_str()) >= calls + what.nth;
  tally.struck += struck ? 1 : 0;
  fake_driver().clear_failures();
  std::vector<StepFailure> failures = subject.failures();
  if (!failures.empty()) {
    ++tally.failed;
    EXPECT_NE(failures.front().text.find(what.symbol), std::string::npos)
        << failures.front().step << " failed with " << oh_status_name(failures.front().status)
        << ": " << failures.front().text;
  }
  for (const StepFailure& failure : failures) {
    EXPECT_NE(failure.status, OH_ERR_TIMEOUT) << failure.step << ": " << failure.text;
  }
  // Without failures the same endpoint works. A link that could not register its segment with the
  // device reports that permanently, so another link is created.
  if (what.symbol.starts_with("cuMemHost")) subject.link_again();
  subject.exchange();
  std::vector<StepFailure> later = subject.failures();
  if (!later.empty() && kBeginsEveryCall.count(what.symbol) != 0) {
    subject.link_again();
    subject.exchange();
    later = subject.failures();
  }
  for (const StepFailure& failure : later) {
    ADD_FAILURE() << "afterwards, " << failure.step << " fails: " << failure.text;
  }
  subject.close();
  if (!kGiveBack.count(what.symbol)) {
    EXPECT_TRUE(comes_back_to(before));
  }
}

class GpuFaults : public ::testing::TestWithParam<MemoryKind> {
 protected:
  void SetUp() override {
#if defined(OH_THREAD_SANITIZER)
    GTEST_SKIP() << "one thread makes the calls, and ThreadSanitizer makes them ten times as long";
#endif
  }
  // Runs `test` on side 0 with a partner on side 1.
  void run(const std::function<void(Side&)>& test) {
    run_apart(
        between_gpus(GetParam()),
        [&](Side& side) {
          use_device(side.kind().driver, side.kind().device[0]);
          for (int number : {SIGALRM, SIGSEGV, SIGABRT}) signal(number, say_case);
          test(side);
        },
        go_along);
  }
};

// Calls of each entry point that fail: all, or GPU_FAULTS_CALLS of them.
constexpr int kCalls = kSanitized ? 1 : 3;
class EveryCall : public GpuFaults {};

TEST_P(EveryCall, FailsOnce) {
  run([&](Side& side) {
    Subject subject(side);
    clean_life(subject);
    Calls calls = clean_life(subject);
    Tally tally;
    const char* given = std::getenv("GPU_FAULTS_CALLS");
    auto most = static_cast<uint64_t>(given ? std::atoi(given) : kCalls);
    int cases = 0;
    for (auto [symbol, count] : calls) {
      Open before = Open::settled();
      for (uint64_t nth : spread(count, most)) {
        ++cases;
        life_with(subject, {symbol, nth, code_for(symbol, nth)}, before, tally);
        if (::testing::Test::HasFatalFailure()) return;
        if (kGiveBack.count(symbol)) before = Open::settled();
      }
    }
    EXPECT_GT(tally.struck, cases / 2);
    fprintf(stderr, "%d failures of the driver, %d of them met, %d failed an operation\n", cases,
            tally.struck, tally.failed);
  });
}

INSTANTIATE_TEST_SUITE_P(Gpu, EveryCall, ::testing::Values(MemoryKind::kMalloc),
                         [](const auto& test) { return std::string(memory_name(test.param)); });

// A dozen calls, the same ones each time, so that results are comparable between changes;
// GPU_FAULTS_SEED selects others.
TEST_P(GpuFaults, SomeCallsFailOnce) {
  const char* given = std::getenv("GPU_FAULTS_SEED");
  unsigned seed = given ? static_cast<unsigned>(std::atoi(given)) : 1;
  run([&](Side& side) {
    Subject subject(side);
    clean_life(subject);
    Calls calls = clean_life(subject);
    std::erase_if(calls, [](const auto& entry) { return entry.second == 0; });
    std::mt19937 random(seed);
    Tally tally;
    for (int i = 0; i < 12; ++i) {
      auto chosen = std::next(calls.begin(), static_cast<int>(random() % calls.size()));
      uint64_t nth = 1 + random() % chosen->second;
      Open before = Open::settled();
      life_with(subject, {chosen->first, nth, code_for(chosen->first, nth)}, before, tally);
      if (::testing::Test::HasFatalFailure()) return;
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Kinds, GpuFaults, ::testing::ValuesIn(kDeviceKinds),
                         [](const auto& test) { return std::string(memory_name(test.param)); });

}  // namespace
}  // namespace conformance::gpu_faults
