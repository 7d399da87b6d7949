// SPDX-License-Identifier: Apache-2.0
#include "platform/ucx/library.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "transport/ucx/ucx_context.h"

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

TEST(UcxLibrary, WhatIsNoUcxIsRefused) {
  oh::Result<const Library*> library = Library::open("libm.so.6");
  EXPECT_EQ(library.status().code(), OH_ERR_NOT_VIABLE);
  EXPECT_THAT(library.status().text(), HasSubstr("ucp_get_version"));
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

// It warns about them.
TEST(UcxSettings, Version13GetsNoneOfTransports) {
  for (const oh::UcxSetting& setting : oh::ucx_settings(/*rdma=*/false, 13)) {
    EXPECT_THAT(setting.name, ::testing::Not(HasSubstr("TCP_")));
    EXPECT_THAT(setting.name, ::testing::Not(HasSubstr("POSIX_")));
  }
}

}  // namespace
