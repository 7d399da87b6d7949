// SPDX-License-Identifier: Apache-2.0
//
// Launches with attributes.
//
// Threading: one thread.
#include "graphs.h"
#include "kernels/batch.h"

namespace fake_test {
namespace {

class FakeLaunch : public GraphTest {
 protected:
  Code launch(std::vector<LaunchAttribute> attributes, unsigned grid = 8) {
    FakeCudaSpin args{go_.address(), runs_.address(), 0};
    void* arguments[] = {&args};
    const LaunchConfig config{
        grid, 1, 1, 32, 1, 1, 0, streams_[0], attributes.data(), unsigned(attributes.size())};
    const Code code = driver().launch_kernel_ex(&config, spin_.function(), arguments, nullptr);
    args = {};  // the launch has read it
    return code;
  }
  static LaunchAttribute domain(int which) {
    LaunchAttribute attribute{};
    attribute.id = kLaunchMemSyncDomain;
    attribute.value.mem_sync_domain = which;
    return attribute;
  }
  static LaunchAttribute cluster(unsigned blocks) {
    LaunchAttribute attribute{};
    attribute.id = kLaunchCluster;
    attribute.value.cluster = {blocks, 1, 1};
    return attribute;
  }
  static LaunchAttribute serialization() {
    LaunchAttribute attribute{};
    attribute.id = kLaunchProgrammaticSerialization;
    attribute.value.programmatic_serialization = 1;
    return attribute;
  }
};

TEST_F(FakeLaunch, AttributesThatAreKnownAreTaken) {
  go_.set();
  EXPECT_EQ(launch({}), kSuccess);
  EXPECT_EQ(driver().blocks(FAKE_CUDA_SPIN), 8U);
  EXPECT_EQ(launch({domain(kMemSyncDomainRemote)}, 5), kSuccess);
  EXPECT_EQ(driver().blocks(FAKE_CUDA_SPIN), 5U);
  EXPECT_EQ(driver().blocks("another"), 0U);
  EXPECT_EQ(launch({domain(kMemSyncDomainDefault), cluster(4), serialization()}), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_TRUE(runs_.is_set());
}

TEST_F(FakeLaunch, OthersAreRefused) {
  LaunchAttribute unknown{};
  unknown.id = 3;  // an attribute of streams only
  EXPECT_EQ(launch({unknown}), kInvalidValue);
  EXPECT_EQ(launch({domain(kMemSyncDomainRemote), unknown}), kInvalidValue);
  EXPECT_EQ(launch({domain(2)}), kInvalidValue);
  EXPECT_EQ(launch({cluster(3)}), kInvalidValue);
  EXPECT_EQ(launch({cluster(0)}), kInvalidValue);
  EXPECT_EQ(launch({}, 0), kInvalidValue);
  EXPECT_EQ(driver().launch_kernel_ex(nullptr, spin_.function(), nullptr, nullptr), kInvalidValue);
  EXPECT_EQ(driver().stream_synchronize(streams_[0]), kSuccess);
  EXPECT_FALSE(runs_.is_set());
}

TEST_F(FakeLaunch, IsRecordedAsAnyOther) {
  const GraphExec exec =
      capture([&] { EXPECT_EQ(launch({domain(kMemSyncDomainRemote)}), kSuccess); });
  EXPECT_FALSE(runs_.is_set());
  go_.set();
  replay(exec);
  EXPECT_TRUE(runs_.is_set());
}

FAKE_ROLE(wrong_grid) {
  Current current;
  Module module = nullptr;
  oh::cuda::Function kernel = nullptr;
  Stream stream = nullptr;
  DevicePtr memory = 0;
  EXPECT_EQ(driver().module_load(&module, "any"), kSuccess);
  EXPECT_EQ(driver().module_function(&kernel, module, oh::kernels::kStreamFewBlocksKernel),
            kSuccess);
  EXPECT_EQ(driver().stream_create(&stream, 0), kSuccess);
  EXPECT_EQ(driver().memory_alloc(&memory, 64), kSuccess);
  oh::kernels::FewBlocksArgs args{1, 2, {{memory, memory + 32, 32}}};
  void* arguments[] = {&args};
  const auto launch = [&](unsigned blocks, unsigned threads) {
    const LaunchConfig config{blocks, 1, 1, threads, 1, 1, 0, stream, nullptr, 0};
    return driver().launch_kernel_ex(&config, kernel, arguments, nullptr);
  };
  EXPECT_EQ(launch(2, oh::kernels::kBatchThreads + 1), kInvalidValue);
  EXPECT_EQ(launch(2, oh::kernels::kBatchThreads), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(stream), kSuccess);
  EXPECT_EQ(launch(1, oh::kernels::kBatchThreads), kSuccess);
  EXPECT_EQ(driver().stream_synchronize(stream), kLaunchFailed);
  return 0;
}

TEST(FakeErrors, AGridThatIsNotTheArgumentsBreaksTheContext) {
  Child child("wrong_grid");
  EXPECT_EQ(child.wait(), 0);
}

}  // namespace
}  // namespace fake_test
