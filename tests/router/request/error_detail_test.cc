#include "router/request/error_detail.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

TEST(ShownTextTest, IsCutBetweenCharacters) {
  EXPECT_EQ(ShownText("plain"), "plain");
  EXPECT_EQ(ShownText("abcd", 3), "abc");
  EXPECT_EQ(ShownText("ab\u00fc", 3), "ab");
  EXPECT_EQ(ShownText("ab\u00fc", 4), "ab\u00fc");
  EXPECT_EQ(ShownText("\U0001f600", 3), "");
}

TEST(ShownTextTest, IsUtf8WhateverItWas) {
  EXPECT_EQ(ShownText("a\xff"
                      "b"),
            "a\ufffd"
            "b");
  EXPECT_EQ(ShownText("\xf0\x9f"), "\ufffd") << "the end of the text breaks a character off";
}

}  // namespace
}  // namespace penstock
