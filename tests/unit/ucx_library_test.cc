// SPDX-License-Identifier: Apache-2.0
#include "platform/ucx/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "path/rma_use.h"
#include "path/selection.h"
#include "transport/ucx/ucx_context.h"
#include "unit/support.h"

namespace ucx_library_test {
namespace {

using oh::ucx::Library;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using ::testing::StrEq;

TEST(UcxLibrary, OffIsOff) {
  oh::Result<const Library*> library = Library::open("off");
  EXPECT_EQ(library.status().code(), OH_ERR_NOT_VIABLE);
  EXPECT_THAT(library.status().text(), HasSubstr("ONEHOP_UCX_LIBRARY=off"));
}

TEST(UcxLibrary, ASharedObjectThatIsNotThereIsNamed) {
  oh::Result<const Library*> library = Library::open("/nowhere/libucp.so.0");
  EXPECT_EQ(library.status().code(), OH_ERR_NOT_VIABLE);
  EXPECT_THAT(library.status().text(), HasSubstr("/nowhere/libucp.so.0"));
}

// In a process that has not loaded UCX for another test.
TEST(UcxLibrary, WhatIsNoUcxIsRefused) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto refuse = [] {
    oh::Result<const Library*> library = Library::open("libm.so.6");
    fprintf(stderr, "%s\n", library.status().text().c_str());
    _exit(library.status().code() == OH_ERR_NOT_VIABLE ? 0 : 1);
  };
  EXPECT_EXIT(refuse(), ::testing::ExitedWithCode(0), "ucp_get_version");
}

// In a process that has not loaded UCX for another test.
TEST(UcxLibrary, AChildForkedWhileAnotherThreadOpensItGetsAStatus) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  auto open = [] { _exit(-unit::open_in_child_while_loading(Library::open)); };
  EXPECT_EXIT(open(), ::testing::ExitedWithCode(-OH_ERR_FORKED), "");
}

TEST(UcxLibrary, TheEnvironmentIsAsBeforeWhenItHasBeenOpened) {
  (void)Library::open("").ok();
  EXPECT_EQ(getenv("UCX_MEM_MMAP_HOOK_MODE"), nullptr);
}

TEST(UcxSettings, NetworkCardsWithRdmaKeepUcxsOwn) {
  for (unsigned minor : {13, 22}) {
    for (const oh::UcxSetting& setting : oh::ucx_settings(/*rdma=*/true, minor)) {
      EXPECT_THAT(setting.name, AnyOf(StrEq("POSIX_ERROR_HANDLING"), StrEq("TCP_SYN_CNT")));
    }
  }
}

// They read them from the environment only, and warn about ours.
TEST(UcxSettings, VersionsBefore17GetNoneOfTransports) {
  for (unsigned minor : {13, 14, 15, 16}) {
    for (const oh::UcxSetting& setting : oh::ucx_settings(/*rdma=*/false, minor)) {
      EXPECT_THAT(setting.name, ::testing::Not(HasSubstr("TCP_")));
      EXPECT_THAT(setting.name, ::testing::Not(HasSubstr("POSIX_")));
    }
  }
}

// Versions 1.16 to 1.21 end the process if a peer is lost during a rendezvous.
TEST(UcxSettings, NoRendezvousWhereItMayCrash) {
  const auto threshold = [](unsigned minor) -> std::string {
    for (const oh::UcxSetting& setting : oh::ucx_settings(/*rdma=*/false, minor)) {
      if (std::string(setting.name) == "RNDV_THRESH") return setting.value;
    }
    return "none";
  };
  for (unsigned minor : {13, 15, 22}) EXPECT_EQ(threshold(minor), "256k") << minor;
  for (unsigned minor : {16, 21}) EXPECT_EQ(threshold(minor), "inf") << minor;
}

TEST(UcxRma, IsUsedWhereACardChecksIt) {
  for (bool rdma : {false, true}) {
    EXPECT_EQ(oh::uses_rma(oh::rma_use("auto"), rdma), rdma);
    EXPECT_TRUE(oh::uses_rma(oh::rma_use("on"), rdma));
    EXPECT_FALSE(oh::uses_rma(oh::rma_use("off"), rdma));
  }
}

TEST(UcxRma, IsByTransportsThatNeedNobody) {
  for (const char* name : {"rc_verbs", "rc_mlx5", "dc_mlx5"}) {
    EXPECT_TRUE(oh::ucx::is_rdma_transport(name)) << name;
  }
  for (const char* name : {"tcp", "ud_mlx5", "posix", "self", ""}) {
    EXPECT_FALSE(oh::ucx::is_rdma_transport(name)) << name;
  }
  EXPECT_FALSE(oh::ucx::is_rdma_transport(nullptr));
}

TEST(UcxRma, PathsSayWhetherPutsAreMessages) {
  oh::LinkFacts facts;
  facts.ucx = true;
  auto why = [&] {
    return choose_one_sided(facts, oh::MemoryKind::kHost, oh::MemoryKind::kHost, 1).why;
  };
  EXPECT_THAT(why(), ::testing::StartsWith("messages"));
  facts.rma = true;
  EXPECT_THAT(why(), HasSubstr("remote memory access"));
}

}  // namespace
}  // namespace ucx_library_test
