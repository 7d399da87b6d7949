// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"

#include <errno.h>

#include <set>
#include <string>
#include <thread>

#include "onehop/onehop.h"
#include "unit/support.h"

namespace status_test {
namespace {

using namespace oh;
using unit::fails_with;

struct Listed {
  oh_status code;
  const char* name;
  int number;
  oh_scope scope;
  const char* text;
};
constexpr Listed kListed[] = {
#define LISTED(name, value, scope, text) {name, #name, value, scope, text},
    OH_STATUS_LIST(LISTED)
#undef LISTED
};

TEST(StatusTest, EveryCodeGoesRoundByNameNumberScopeAndText) {
  std::set<std::string> names;
  std::set<int> numbers;
  for (const Listed& entry : kListed) {
    EXPECT_STREQ(oh_status_name(entry.code), entry.name);
    EXPECT_EQ(static_cast<int>(entry.code), entry.number) << entry.name;
    EXPECT_STREQ(oh_status_text(entry.code), entry.text);
    EXPECT_EQ(oh_status_scope(entry.code), entry.scope) << entry.name;
    EXPECT_TRUE(names.insert(entry.name).second) << entry.name;
    EXPECT_TRUE(numbers.insert(entry.number).second) << entry.name;
    EXPECT_STRNE(entry.text, "");
  }
}

// A code states what must be rebuilt: its sign and its group of numbers agree with its scope.
TEST(StatusTest, NumbersAreGroupedByScope) {
  for (const Listed& entry : kListed) {
    if (entry.number >= 0) {
      EXPECT_EQ(entry.scope, OH_SCOPE_NONE) << entry.name;
    } else if (entry.number > -20) {
      EXPECT_EQ(entry.scope, OH_SCOPE_OPERATION) << entry.name;
    } else if (entry.number > -40) {
      EXPECT_EQ(entry.scope, OH_SCOPE_LINK) << entry.name;
    } else {
      EXPECT_EQ(entry.scope, OH_SCOPE_ENDPOINT) << entry.name;
    }
    // It must fit into the eight bits of a slot's word.
    EXPECT_GT(entry.number, -256) << entry.name;
  }
}

TEST(StatusTest, UnknownCodesHaveTextsToo) {
  for (int number : {3, 63, -12, -60}) {
    auto code = static_cast<oh_status>(number);
    EXPECT_STREQ(oh_status_name(code), "OH_UNKNOWN") << number;
    EXPECT_STREQ(oh_status_text(code), "unknown status code") << number;
    EXPECT_EQ(oh_status_scope(code), OH_SCOPE_ENDPOINT) << number;
  }
}

TEST(StatusTest, NumbersThatSomebodySentBecomeCodesOrAnother) {
  for (const Listed& entry : kListed) {
    EXPECT_EQ(status_from(entry.number, OH_ERR_PROTOCOL), entry.code);
  }
  for (int64_t number :
       {int64_t{3}, int64_t{-12}, int64_t{-255}, INT64_MIN, INT64_MAX, int64_t{1} << 32}) {
    EXPECT_EQ(status_from(number, OH_ERR_PROTOCOL), OH_ERR_PROTOCOL) << number;
  }
}

TEST(StatusTest, SuccessIsOnePointerAndAllocatesNothing) {
  EXPECT_EQ(sizeof(Status), sizeof(void*));
  EXPECT_TRUE(Status().ok());
  EXPECT_EQ(Status().code(), OH_OK);
  EXPECT_EQ(Status().text(), "success");
  EXPECT_TRUE(Status(OH_OK, "whatever").ok());
}

TEST(StatusTest, CopiesAndMovesKeepCodeAndText) {
  Status first = error(OH_ERR_TIMEOUT, "waited %d s for %s", 5, "rank 1");
  Status copy = first;
  EXPECT_TRUE(fails_with(copy, OH_ERR_TIMEOUT, "waited 5 s for rank 1"));
  Status assigned;
  assigned = copy;
  assigned = *&assigned;
  EXPECT_TRUE(fails_with(assigned, OH_ERR_TIMEOUT, "rank 1"));
  Status moved = std::move(first);
  EXPECT_TRUE(fails_with(moved, OH_ERR_TIMEOUT, "rank 1"));
  moved = Status();
  EXPECT_TRUE(moved.ok());
  assigned = moved;
  EXPECT_TRUE(assigned.ok());
}

TEST(StatusTest, AnErrnoIsNamedAndExplained) {
  Status status = Status::from_errno(OH_ERR_SYSTEM, ENOSPC, "writing the table");
  EXPECT_TRUE(fails_with(status, OH_ERR_SYSTEM, "writing the table: ENOSPC (No space left"));
  EXPECT_TRUE(fails_with(Status::from_errno(OH_ERR_SYSTEM, 4711, "calling"), OH_ERR_SYSTEM,
                         "errno 4711 (Unknown error 4711)"));
}

TEST(StatusTest, LongTextsAreKeptWhole) {
  std::string text(100000, 'x');
  EXPECT_EQ(error(OH_ERR_LINK, "%s!", text.c_str()).text(), text + "!");
  EXPECT_EQ(strf("%s", ""), "");
}

Result<int> half(int number) {
  if (number % 2) return error(OH_ERR_INVALID, "%d is odd", number);
  return number / 2;
}

Result<int> quarter(int number) {
  OH_ASSIGN_OR_RETURN(int first, half(number));
  OH_ASSIGN_OR_RETURN(int second, half(first));
  OH_RETURN_IF_ERROR(Status());
  return second;
}

TEST(StatusTest, ResultsPropagate) {
  EXPECT_EQ(*quarter(12), 3);
  EXPECT_TRUE(quarter(12).status().ok());
  EXPECT_TRUE(fails_with(quarter(6), OH_ERR_INVALID, "3 is odd"));
  EXPECT_TRUE(fails_with(quarter(5), OH_ERR_INVALID, "5 is odd"));
}

TEST(StatusTest, EveryThreadHasItsOwnErrorText) {
  EXPECT_EQ(oh_endpoint_create(nullptr, nullptr), OH_ERR_INVALID);
  std::string mine = oh_error_text();
  EXPECT_NE(mine.find("'endpoint' is NULL"), std::string::npos) << mine;
  std::thread([] { EXPECT_STREQ(oh_error_text(), "no error"); }).join();
  EXPECT_EQ(oh_error_text(), mine);
}

TEST(StatusTest, EveryPathHasAName) {
  std::set<std::string> names;
  for (int path = 0; path < OH_PATH_COUNT; ++path) {
    std::string name = oh_path_name(static_cast<oh_path>(path));
    EXPECT_NE(name, "unknown") << path;
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  EXPECT_STREQ(oh_path_name(static_cast<oh_path>(OH_PATH_COUNT)), "unknown");
}

}  // namespace
}  // namespace status_test
