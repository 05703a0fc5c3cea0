#include "model/tokenizer/stop_matcher.h"

#include <gtest/gtest.h>

#include <random>

namespace penstock {
namespace {

StopMatcher Make(std::vector<std::string> stops, bool include = false) {
  absl::StatusOr<StopMatcher> matcher = StopMatcher::Create(std::move(stops), include);
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  return *std::move(matcher);
}

TEST(StopMatcher, HoldsBackWhatMayBecomeAStop) {
  StopMatcher matcher = Make({"\n\nUser:"});
  EXPECT_EQ(matcher.Feed("Hi").text, "Hi");
  EXPECT_EQ(matcher.Feed(" there\n").text, " there");
  EXPECT_EQ(matcher.Feed("x\n\nUs").text, "\nx");
  EXPECT_EQ(matcher.Feed("e").text, "");
  EXPECT_EQ(matcher.Feed("d").text, "\n\nUsed");
  EXPECT_FALSE(matcher.matched());
}

TEST(StopMatcher, CutsAtTheStopAndSwallowsTheRest) {
  StopMatcher matcher = Make({"zzz", "END"});
  EXPECT_EQ(matcher.Feed("abc E").text, "abc ");
  const StopMatcher::Result result = matcher.Feed("ND more");
  EXPECT_EQ(result.text, "");
  EXPECT_EQ(result.stop, 1u);
  EXPECT_TRUE(matcher.matched());
  EXPECT_EQ(matcher.Feed("tail").text, "");
  EXPECT_EQ(matcher.Flush(), "");
}

TEST(StopMatcher, CanIncludeTheStop) {
  StopMatcher matcher = Make({"END"}, /*include=*/true);
  EXPECT_EQ(matcher.Feed("abc END more").text, "abc END");
}

TEST(StopMatcher, FlushGivesBackWhatWasHeld) {
  StopMatcher matcher = Make({"END"});
  EXPECT_EQ(matcher.Feed("abc EN").text, "abc ");
  EXPECT_EQ(matcher.Flush(), "EN");
}

TEST(StopMatcher, TheStopThatEndsFirstWinsAndTheLongestOfThose) {
  EXPECT_EQ(Make({"abcd", "bc"}).Feed("xabcd").stop, 1u);
  StopMatcher matcher = Make({"bc", "abc"});
  const StopMatcher::Result result = matcher.Feed("xabc");
  EXPECT_EQ(result.stop, 1u);
  EXPECT_EQ(result.text, "x");
}

TEST(StopMatcher, CopiesAreIndependent) {
  StopMatcher first = Make({"END"});
  StopMatcher second = first;
  EXPECT_EQ(first.Feed("xE").text, "x");
  EXPECT_EQ(second.Feed("ND").text, "ND");
  EXPECT_EQ(first.Feed("ND").stop, 0u);
  EXPECT_FALSE(second.matched());
}

TEST(StopMatcher, WithoutStopsAllPasses) {
  StopMatcher matcher = Make({});
  EXPECT_EQ(matcher.Feed("abc").text, "abc");
}

TEST(StopMatcher, RefusesWhatIsOutsideTheLimits) {
  EXPECT_FALSE(StopMatcher::Create({""}).ok());
  EXPECT_FALSE(StopMatcher::Create({std::string(257, 'a')}).ok());
  EXPECT_TRUE(StopMatcher::Create({std::string(256, 'a')}).ok());
  EXPECT_FALSE(StopMatcher::Create({"\xC3"}).ok());
  EXPECT_FALSE(StopMatcher::Create(std::vector<std::string>(17, "a")).ok());
  EXPECT_TRUE(StopMatcher::Create(std::vector<std::string>(16, "a")).ok());
}

// The result of a plain search over the whole text.
struct Found {
  std::string text;
  std::optional<size_t> stop;
};
Found SearchWhole(const std::string& text, const std::vector<std::string>& stops) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::optional<size_t> best;
    for (size_t i = 0; i < stops.size(); ++i) {
      const bool ends_here = text.substr(0, end).ends_with(stops[i]);
      if (ends_here && (!best || stops[i].size() > stops[*best].size())) best = i;
    }
    if (best) return {text.substr(0, end - stops[*best].size()), best};
  }
  return {text, std::nullopt};
}

TEST(StopMatcher, DoesNotDependOnHowTheTextIsCut) {
  std::mt19937 rng(5);
  const auto random_text = [&](size_t length) {
    std::string text;
    for (size_t i = 0; i < length; ++i) text += static_cast<char>('a' + rng() % 2);
    return text;
  };
  for (int round = 0; round < 3000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + rng() % 4; ++i) stops.push_back(random_text(3 + rng() % 6));
    const std::string text = random_text(rng() % 60);
    const Found expected = SearchWhole(text, stops);
    StopMatcher matcher = Make(stops);
    std::string emitted;
    std::optional<size_t> stop;
    for (size_t at = 0; at < text.size();) {
      const size_t length = 1 + rng() % 5;
      const StopMatcher::Result result = matcher.Feed(std::string_view(text).substr(at, length));
      emitted += result.text;
      if (result.stop) stop = result.stop;
      at += length;
    }
    emitted += matcher.Flush();
    ASSERT_EQ(emitted, expected.text) << text;
    ASSERT_EQ(stop.has_value(), expected.stop.has_value());
    if (stop) {
      ASSERT_EQ(stops[*stop], stops[*expected.stop]);
    }
  }
}

}  // namespace
}  // namespace penstock
