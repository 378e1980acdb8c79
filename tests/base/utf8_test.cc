#include "base/utf8.h"

#include <gtest/gtest.h>

namespace prefixd::base {
namespace {

TEST(Utf8Test, KeepsWhatFitsAndCutsNoCharacter) {
  EXPECT_EQ(Utf8Prefix("gemma", 1024), "gemma");
  EXPECT_EQ(Utf8Prefix("gemma", 3), "gem");
  const std::string text = "a\u00e9\u20ac\U0001f600";  // 1, 2, 3 and 4 bytes
  for (size_t most = 0; most <= text.size(); ++most) {
    const size_t whole = most < 3 ? most > 0 : most < 6 ? 3 : most < 10 ? 6 : 10;
    EXPECT_EQ(Utf8Prefix(text, most), text.substr(0, whole)) << most;
  }
}

TEST(Utf8Test, BytesThatAreNoTextBecomeQuestionMarks) {
  EXPECT_EQ(Utf8Prefix("a\x80z\xff", 9), "a?z?");
  EXPECT_EQ(Utf8Prefix("\xc3", 9), "?") << "half a character";
  EXPECT_EQ(Utf8Prefix("\xe2\x82", 9), "??");
  EXPECT_EQ(Utf8Prefix("\xc0\x80", 9), "??") << "longer than needed";
  EXPECT_EQ(Utf8Prefix("\xe0\x9f\xbf", 9), "???");
  EXPECT_EQ(Utf8Prefix("\xed\xa0\x80", 9), "???") << "half of a surrogate pair";
  EXPECT_EQ(Utf8Prefix("\xf4\x90\x80\x80", 9), "????") << "beyond the last character";
  EXPECT_EQ(Utf8Prefix(std::string_view("a\0b", 3), 9), std::string("a\0b", 3));
}

TEST(Utf8Test, WhatIsPrintedIsOneLineOfAsciiAndQuotesStayAsTheyAre) {
  EXPECT_EQ(Printable("client's \"a b\""), "client's \"a b\"");
  EXPECT_EQ(Printable("a\nb\r\x1b[31m\\"), "a\\nb\\x0d\\x1b[31m\\x5c");
  EXPECT_EQ(Printable("\xc3\xb6\x7f"), "\\xc3\\xb6\\x7f");
}

}  // namespace
}  // namespace prefixd::base
