// SPDX-License-Identifier: Apache-2.0
#include "base/text.h"

#include <cerrno>

#include "unit/support.h"

namespace text_test {
namespace {

using namespace oh;

TEST(TextTest, PrintableTextStaysAsItIs) {
  for (std::string_view text :
       {"", "a host:12", "~ \\ \"", "\u00e9", "\u20ac \u65e5\u672c", "\U0001F600", "\uFFFD"}) {
    EXPECT_EQ(printable(text, 99), text);
    EXPECT_EQ(printable(text, text.size()), text);
  }
}

TEST(TextTest, ErrorNumbersHaveNamesAndTexts) {
  EXPECT_EQ(errno_text(ECONNREFUSED), "Connection refused");
  EXPECT_EQ(errno_name(4711), "errno 4711");
  EXPECT_EQ(errno_text(4711), "Unknown error 4711");
}

TEST(TextTest, ControlCharactersAreEscaped) {
  EXPECT_EQ(printable("one\ntwo", 99), "one\\x0atwo");
  EXPECT_EQ(printable(std::string_view("\0\x1b[2J\x7f", 6), 99), "\\x00\\x1b[2J\\x7f");
  EXPECT_EQ(printable("\u009b\u00a0", 99), "\\xc2\\x9b\u00a0");
}

TEST(TextTest, BytesThatAreNotUtf8AreEscaped) {
  EXPECT_EQ(printable("\xff\xfe", 99), "\\xff\\xfe");
  EXPECT_EQ(printable("caf\xe9", 99), "caf\\xe9");
  EXPECT_EQ(printable("\x80z", 99), "\\x80z");
  EXPECT_EQ(printable("\xe2\x82", 99), "\\xe2\\x82");    // cut off
  EXPECT_EQ(printable("\xe2\x82z", 99), "\\xe2\\x82z");  // interrupted
  EXPECT_EQ(printable("\xc0\xaf", 99), "\\xc0\\xaf");    // longer than necessary
  EXPECT_EQ(printable("\xe0\x80\xaf", 99), "\\xe0\\x80\\xaf");
  EXPECT_EQ(printable("\xed\xa0\x80", 99), "\\xed\\xa0\\x80");  // a surrogate
  EXPECT_EQ(printable("\xf4\x90\x80\x80", 99),
            "\\xf4\\x90\\x80\\x80");  // beyond the last code point
  EXPECT_EQ(printable("\xf8\x88\x80\x80\x80", 99), "\\xf8\\x88\\x80\\x80\\x80");
}

// The result of any bytes is printable itself: nothing is left to escape.
TEST(TextTest, EveryPairOfBytesBecomesPrintable) {
  for (int first = 0; first < 256; ++first) {
    for (int second = 0; second < 256; ++second) {
      const char bytes[] = {static_cast<char>(first), static_cast<char>(second), '\x80'};
      std::string shown = printable({bytes, sizeof(bytes)}, 99);
      EXPECT_EQ(printable(shown, 99), shown);
      EXPECT_LE(shown.size(), 4 * sizeof(bytes));
    }
  }
}

TEST(TextTest, NeitherCharactersNorEscapesAreCut) {
  EXPECT_EQ(printable("abc", 2), "ab");
  EXPECT_EQ(printable("a\u20ac", 3), "a");
  EXPECT_EQ(printable("a\xff\xff", 8), "a\\xff");
  EXPECT_EQ(printable("\n", 3), "");

  EXPECT_EQ(cut_text("abc", 3), "abc");
  EXPECT_EQ(cut_text("abc", 2), "ab");
  EXPECT_EQ(cut_text("a\u20ac", 4), "a\u20ac");
  EXPECT_EQ(cut_text("a\u20ac", 3), "a");
  EXPECT_EQ(cut_text("a\u20ac", 2), "a");
  EXPECT_EQ(cut_text("\u20ac", 1), "");
  EXPECT_EQ(cut_text("\x80\x80", 1), "");
}

TEST(TextTest, JsonStringsAreOneLineOfUtf8) {
  EXPECT_EQ(json_text(""), "\"\"");
  EXPECT_EQ(json_text("a \"b\" \\ \u20ac"), "\"a \\\"b\\\" \\\\ \u20ac\"");
  EXPECT_EQ(json_text("a\n\x80"), "\"a\\\\x0a\\\\x80\"");
}

}  // namespace
}  // namespace text_test
