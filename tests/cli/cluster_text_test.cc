#include "cli/operate/cluster_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "cli/operate/screen.h"

namespace penstock {
namespace {

using Json = nlohmann::json;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr uint64_t kMiB = uint64_t{1} << 20;

// As router/page/cluster_report.cc makes them.
Json Tier(const char* name, uint64_t used, uint64_t total) {
  return {{"tier", name},
          {"total_bytes", total},
          {"used_bytes", used},
          {"reserved_bytes", 0},
          {"cached_bytes", 0}};
}

Json Spread(uint64_t quick, uint64_t all) {
  return {{"bounds", {0.01, 0.5, nullptr}}, {"counts", {quick, all, all}}};
}

Json Picture() {
  return {{"router",
           {{"version", "1"},
            {"model", "tiny"},
            {"uptime_s", 10.0},
            {"ready", true},
            {"keys", true},
            {"workers", 2},
            {"context_tokens", 4096}}},
          {"requests",
           {{"open", 3},
            {"waiting", 1},
            {"ended", 20},
            {"refused", 2},
            {"prompt_tokens", 200},
            {"cached_tokens", 50},
            {"first_token_s", Spread(19, 20)},
            {"next_token_s", Spread(100, 100)}}},
          {"workers",
           {{{"name", "prefill-0"},
             {"role", "prefill"},
             {"state", "ready"},
             {"life", "a1"},
             {"running", 1},
             {"waiting", 4},
             {"waiting_tokens", 77},
             {"booked", 1},
             {"transfers", 1},
             {"tokens", 1000},
             {"steps", 9},
             {"tiers", {Tier("device", 32 * kMiB, 64 * kMiB), Tier("dram", 0, 128 * kMiB)}}}}},
          {"links",
           {{{"from", "prefill-0"},
             {"to", "decode-0"},
             {"kind", "handoff"},
             {"open", 1},
             {"done", 12},
             {"bytes", 4 * kMiB},
             {"exposed_ms", 1.0},
             {"transport", "shm"}}}},
          {"prefixes",
           {{{"tokens", 128},
             {"hits", 9},
             {"recent_hits", 4.5},
             {"tenant", "acme"},
             {"where", {{{"worker", "prefill-0"}, {"tier", "dram"}}}}}}}};
}

ClusterSeen Seen(const Json& picture, int second = 0) {
  return {.json = picture.dump(), .at = TimePoint(std::chrono::seconds(second))};
}

std::string Text(const Json& now, const Json& before = {}) {
  const auto text = before.is_null() ? ClusterText(Seen(now), std::nullopt)
                                     : ClusterText(Seen(now, 2), Seen(before));
  EXPECT_TRUE(text.ok()) << text.status();
  return text.value_or("");
}

TEST(ClusterText, ShowsWhatThePageShows) {
  const std::string text = Text(Picture());
  EXPECT_THAT(text, HasSubstr("tiny ready, 2 workers, up 10 s; - tokens/s"));
  EXPECT_THAT(text, HasSubstr("TTFT p50 10 ms, p99 500 ms"));
  EXPECT_THAT(text, HasSubstr("3 open, 1 queued, 20 done, 2 refused; 25 % of 200 prompt"));
  EXPECT_THAT(text, HasSubstr("device [########        ] 50% of 64 MiB"));
  EXPECT_THAT(text, HasSubstr("dram [                ] 0% of 128 MiB"));
  EXPECT_THAT(text, HasSubstr("prefill-0 -> decode-0"));
  EXPECT_THAT(text, AllOf(HasSubstr("handoff"), HasSubstr("shm"), HasSubstr("4 MiB")));
  EXPECT_THAT(text, AllOf(HasSubstr("128 tokens"), HasSubstr("acme"), HasSubstr("prefill-0:dram")));
}

size_t LongestLine(const std::string& text) {
  size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) longest = std::max(longest, line.size());
  return longest;
}

TEST(ClusterText, FitsInEightyColumns) {
  Json later = Picture();
  later["router"]["uptime_s"] = 12345.0;
  later["requests"]["next_token_s"] = Spread(123'456, 123'456);
  later["workers"][0]["name"] = "a-worker-with-a-long-name-0";
  later["workers"][0]["tokens"] = 123'456;
  later["links"][0]["to"] = "another-worker-with-a-long-name-0";
  const auto text = ClusterText(Seen(later, 2), Seen(Picture()), 80);
  ASSERT_TRUE(text.ok()) << text.status();
  EXPECT_LE(LongestLine(*text), 80u) << *text;
  EXPECT_THAT(*text, HasSubstr("device 50%, dram 0%"));
  EXPECT_THAT(*text, HasSubstr("with-a-long-name-0 prefill  ready"));
  EXPECT_THAT(*text, HasSubstr("2 refused;\n25 % of")) << "the line of figures is broken";
}

TEST(FitToScreen, CutsLinesAndSaysHowManyThereAreMore) {
  EXPECT_EQ(FitToScreen("abcdef\nab\n", {.columns = 4, .rows = 5}), "abcd\nab");
  EXPECT_EQ(FitToScreen("\u00e4\u00f6\u00fc", {.columns = 2, .rows = 5}), "\u00e4\u00f6");
  EXPECT_EQ(FitToScreen("1\n2\n3\n4\n", {.columns = 40, .rows = 4}), "1\n2\n3\n4");
  EXPECT_EQ(FitToScreen("1\n2\n3\n4\n5\n", {.columns = 40, .rows = 4}), "1\n2\n3\n(2 more lines)");
  EXPECT_EQ(FitToScreen("", {.columns = 40, .rows = 4}), "");
}

TEST(ClusterText, RatesAreOfTheTimeBetween) {
  Json later = Picture();
  later["router"]["uptime_s"] = 12.0;
  later["workers"][0]["tokens"] = 1200;
  later["links"][0]["bytes"] = 6 * kMiB;
  later["requests"]["next_token_s"] = Spread(140, 140);
  later["requests"]["first_token_s"] = Spread(19, 40);  // all of the new ones were slow
  const std::string text = Text(later, Picture());
  EXPECT_THAT(text, HasSubstr("; 30.0 tokens/s; TTFT p50 500 ms"));
  EXPECT_THAT(text, HasSubstr(" 100.0  device"));
  EXPECT_THAT(text, HasSubstr("  1 MiB\n"));
}

TEST(ClusterText, CountersThatBeganAnewHaveNoRate) {
  Json anew = Picture();
  anew["router"]["uptime_s"] = 1.0;
  EXPECT_THAT(Text(anew, Picture()), HasSubstr("; - tokens/s"));
  Json other = Picture();  // the worker was replaced
  other["workers"][0]["life"] = "b2";
  other["workers"][0]["tokens"] = 5;
  EXPECT_THAT(Text(other, Picture()), HasSubstr("        -  device"));
}

TEST(ClusterText, NamesCannotMoveTheCursor) {
  Json picture = Picture();
  picture["workers"][0]["name"] = "\x1b[2Jw\n";
  picture["prefixes"][0]["tenant"] =
      "\xc2\x9b"
      "2J";
  EXPECT_THAT(Text(picture), AllOf(Not(HasSubstr("\x1b")), Not(HasSubstr("\xc2\x9b")),
                                   HasSubstr("\\u001b[2Jw\\n")));
}

TEST(ClusterText, WhatIsNoPictureIsAnError) {
  Json other = Picture();
  other["requests"].erase("open");
  for (const std::string& json : {std::string("{"), std::string("[]"), other.dump()}) {
    const auto text = ClusterText({.json = json, .at = {}}, std::nullopt);
    EXPECT_THAT(text.status().ToString(), HasSubstr("its version may differ")) << json;
  }
}

}  // namespace
}  // namespace penstock
