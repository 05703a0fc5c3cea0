#include "base/log/log_line.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/log/log.h"
#include "base/log/log_rate_limit.h"

namespace penstock {
namespace {

std::string Text(const LogField& field) {
  std::string line;
  AppendLogField(field, LogFormat::kText, line);
  return line;
}

// As a collector reads it.
nlohmann::json Json(const LogField& field) {
  std::string line = "{\"first\":1";
  AppendLogField(field, LogFormat::kJson, line);
  EXPECT_EQ(line.find('\n'), std::string::npos) << line;
  return nlohmann::json::parse(line + "}")[std::string(field.key())];
}

TEST(LogLine, PlainValuesStandAsTheyAre) {
  EXPECT_EQ(Text({"worker", "decode-0"}), " worker=decode-0");
  EXPECT_EQ(Text({"endpoint", "127.0.0.1:80"}), " endpoint=127.0.0.1:80");
  EXPECT_EQ(Text({"tokens", uint32_t{7}}), " tokens=7");
  EXPECT_EQ(Text({"left", -3}), " left=-3");
  EXPECT_EQ(Text({"ready", true}), " ready=true");
  EXPECT_EQ(Text({"after_ms", 1.5}), " after_ms=1.500");
  EXPECT_EQ(Json({"worker", "decode-0"}), "decode-0");
  EXPECT_EQ(Json({"tokens", std::numeric_limits<uint64_t>::max()}),
            std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(Json({"left", std::numeric_limits<int64_t>::min()}),
            std::numeric_limits<int64_t>::min());
  EXPECT_EQ(Json({"ready", false}), false);
  EXPECT_EQ(Json({"after_ms", 1.5}), 1.5);
}

TEST(LogLine, NumbersThatAreNoneAreNull) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(Text({"ms", nan}), " ms=null");
  EXPECT_TRUE(Json({"ms", nan}).is_null());
  EXPECT_TRUE(Json({"ms", std::numeric_limits<double>::infinity()}).is_null());
}

TEST(LogLine, NothingInAValueCanBeTakenForAnotherFieldOrLine) {
  const std::string forged = "a event=stopped\n{\"request\":\"b\"}";
  EXPECT_EQ(Text({"request", forged}), R"( request="a event=stopped\n{\"request\":\"b\"}")");
  EXPECT_EQ(Json({"request", forged}), forged);
  EXPECT_EQ(Text({"request", ""}), R"( request="")");
  EXPECT_EQ(Text({"request", "back\\slash"}), R"( request="back\\slash")");
}

TEST(LogLine, TerminalsAndReadersOfLinesSeeNoControls) {
  EXPECT_EQ(Text({"x", "\x1b[2J"}), R"( x="\u001b[2J")");
  EXPECT_EQ(Text({"x", std::string("a\0b", 3)}), R"( x="a\u0000b")");
  EXPECT_EQ(Text({"x", "\x7f"}), R"( x="\u007f")");
  EXPECT_EQ(Text({"x", "\xc2\x9b"}), R"( x="\u009b")");      // CSI in one character
  EXPECT_EQ(Text({"x", "\xe2\x80\xa8"}), R"( x="\u2028")");  // a line, to some readers
  EXPECT_EQ(Text({"x", "\xe2\x80\xae"}), R"( x="\u202e")");  // right to left from here
  EXPECT_EQ(Text({"x", "gr\xc3\xbc\xc3\x9f"}), " x=\"gr\xc3\xbc\xc3\x9f\"");
  EXPECT_EQ(Json({"x", "\xe2\x80\xa8"}), "\xe2\x80\xa8");
}

TEST(LogLine, WhatIsNotUtf8IsMadeSo) {
  for (const char* bad : {"\xff", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xe2\x82"}) {
    const auto parsed = Json({"x", bad});
    EXPECT_EQ(parsed.get<std::string>().substr(0, 3), "\xef\xbf\xbd") << Text({"x", bad});
  }
  EXPECT_EQ(Text({"x", "a\xff"}), R"( x="a\xff")");
  EXPECT_EQ(Json({"x", "\xf0\x9f\x98\x80"}), "\xf0\x9f\x98\x80");
}

TEST(LogLine, LongValuesAreCut) {
  const std::string longest(kLogValueMax, 'x');
  EXPECT_EQ(Json({"x", longest}), longest);
  EXPECT_EQ(Json({"x", longest + "y"}), longest + "...");
  // Also in the middle of a character.
  std::string odd(kLogValueMax - 1, 'x');
  EXPECT_EQ(Json({"x", odd + "\xc3\xbc"}), odd + "\xef\xbf\xbd...");
}

TEST(LogRateLimit, WhatIsTooMuchInASecondIsCountedAndSaidOnce) {
  LogRateLimit limit(2);
  TimePoint now{};
  now += std::chrono::hours(1);
  EXPECT_TRUE(limit.Check(now).write);
  EXPECT_TRUE(limit.Check(now).write);
  EXPECT_FALSE(limit.Check(now).write);
  EXPECT_FALSE(limit.Check(now + std::chrono::milliseconds(999)).write);
  EXPECT_EQ(limit.TakeDropped(now), 0u) << "the second is not over";
  const LogRateLimit::Verdict next = limit.Check(now + std::chrono::seconds(1));
  EXPECT_TRUE(next.write);
  EXPECT_EQ(next.dropped_before, 2u);
  EXPECT_EQ(limit.Check(now + std::chrono::seconds(3)).dropped_before, 0u);
}

TEST(LogFormat, IsTextUnlessJsonIsAskedFor) {
  EXPECT_EQ(ParseLogFormat("json"), LogFormat::kJson);
  EXPECT_EQ(ParseLogFormat("text"), LogFormat::kText);
}

}  // namespace
}  // namespace penstock
