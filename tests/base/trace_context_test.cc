#include "base/trace_context.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

namespace penstock {
namespace {

constexpr char kTrace[] = "4bf92f3577b34da6a3ce929d0e0e4736";
constexpr char kSpan[] = "00f067aa0ba902b7";
const std::string kGood = fmt::format("00-{}-{}-01", kTrace, kSpan);

TraceContext Parse(std::string_view parent, std::vector<std::string_view> states = {}) {
  return ParseTrace({.parents = {parent}, .states = std::move(states)});
}

TEST(TraceContext, AWellFormedParentIsTaken) {
  const TraceContext trace = Parse(kGood);
  EXPECT_EQ(trace.trace_id, kTrace);
  EXPECT_EQ(trace.span_id, kSpan);
  EXPECT_EQ(trace.flags, kTraceSampled);
  EXPECT_EQ(TraceParent(trace), kGood);
  // Unknown flags are not passed on.
  EXPECT_EQ(Parse(fmt::format("00-{}-{}-ff", kTrace, kSpan)).flags, kTraceFlags);
  EXPECT_EQ(Parse(fmt::format("00-{}-{}-00", kTrace, kSpan)).flags, 0);
}

TEST(TraceContext, LaterVersionsAreReadAsFarAsTheyAreKnown) {
  EXPECT_EQ(Parse(fmt::format("01-{}-{}-01", kTrace, kSpan)).trace_id, kTrace);
  EXPECT_EQ(Parse(fmt::format("cc-{}-{}-01-what-comes", kTrace, kSpan)).trace_id, kTrace);
  EXPECT_EQ(Parse(fmt::format("cc-{}-{}-01.what-comes", kTrace, kSpan)).trace_id, "");
}

TEST(TraceContext, WhatIsMalformedIsNoTrace) {
  const std::string bad[] = {
      "",
      "00",
      kGood + "-",  // version 00 ends there
      kGood + "0",
      kGood.substr(0, 54),
      fmt::format("ff-{}-{}-01", kTrace, kSpan),  // no version
      fmt::format("0x-{}-{}-01", kTrace, kSpan),
      fmt::format("00-{}-{}-0g", kTrace, kSpan),
      fmt::format("00_{}-{}-01", kTrace, kSpan),
      fmt::format("00-{}-{}-01", std::string(32, '0'), kSpan),
      fmt::format("00-{}-{}-01", kTrace, std::string(16, '0')),
      fmt::format("00-4BF92F3577B34DA6A3CE929D0E0E4736-{}-01", kSpan),  // upper case
      fmt::format("00-{}-{}-01", "4bf92f3577b34da6a3ce929d0e0e473\n", kSpan),
      " " + kGood,
  };
  for (const std::string& parent : bad) EXPECT_EQ(Parse(parent).trace_id, "") << parent;
}

TEST(TraceContext, TwoParentsAreNone) {
  EXPECT_EQ(ParseTrace({.parents = {kGood, kGood}, .states = {"a=1"}}).trace_id, "");
  EXPECT_EQ(ParseTrace({.parents = {}, .states = {"a=1"}}).state, "");
}

TEST(TraceContext, StateIsPassedOnInOrder) {
  EXPECT_EQ(Parse(kGood, {"rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"}).state,
            "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE");
  EXPECT_EQ(Parse(kGood, {" a=1 ,, \t b=2", "t1@sys=x y"}).state, "a=1,b=2,t1@sys=x y");
  EXPECT_EQ(Parse(kGood, {"1a@b=0"}).state, "1a@b=0");
}

TEST(TraceContext, AMalformedStateIsLeftOutAndTheTraceStays) {
  for (const std::string_view bad : {"a", "=1", "a=", "A=1", "1a=1", "a=1,a=2", "a=b=c", "a=\x01",
                                     "a@=1", "a@1b=1", "a=\xc3\xbc", "a@bbbbbbbbbbbbbbb=1"}) {
    const TraceContext trace = Parse(kGood, {"ok=1", bad});
    EXPECT_EQ(trace.trace_id, kTrace);
    EXPECT_EQ(trace.state, "") << bad;
  }
}

TEST(TraceContext, StateIsBounded) {
  std::string members;
  for (int i = 0; i < 32; ++i) members += fmt::format("k{}=v,", i);
  EXPECT_NE(Parse(kGood, {members}).state, "");
  EXPECT_EQ(Parse(kGood, {members, "one=more"}).state, "");
  // Long members go first, the last of them before the others; then the last ones.
  const std::string large(200, 'x'), small(90, 'y');
  const std::string state =
      fmt::format("a={},b={},c={},d={},e={}", large, small, large, small, small);
  EXPECT_EQ(Parse(kGood, {state}).state,
            fmt::format("a={},b={},d={},e={}", large, small, small, small));
  std::string many;
  for (char c = 'a'; c < 'k'; ++c) many += fmt::format("{}={},", c, small);
  EXPECT_EQ(Parse(kGood, {many}).state, fmt::format("a={0},b={0},c={0},d={0},e={0}", small));
  EXPECT_EQ(Parse(kGood, {std::string(10'000, ',')}).state, "");
}

TEST(TraceContext, ACallersTraceGoesOnWithASpanOfOurs) {
  const TraceContext ours =
      ContinueTrace(Parse(kGood, {"a=1"}), {.trace_high = 1, .trace_low = 2, .span = 0xabc});
  EXPECT_EQ(TraceParent(ours), fmt::format("00-{}-0000000000000abc-01", kTrace));
  EXPECT_EQ(ours.state, "a=1");
}

TEST(TraceContext, WithoutOneANewOneBegins) {
  const TraceContext ours = ContinueTrace({}, {.trace_high = 1, .trace_low = 2, .span = 3});
  EXPECT_EQ(TraceParent(ours), "00-00000000000000010000000000000002-0000000000000003-02");
  EXPECT_EQ(Parse(TraceParent(ContinueTrace({}, {}))).trace_id, fmt::format("{:032x}", 1));
}

}  // namespace
}  // namespace penstock
