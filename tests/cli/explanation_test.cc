#include "cli/client/explanation.h"

#include <gtest/gtest.h>

namespace penstock {
namespace {

v1::ScoredPair Pair(const char* prefill, const char* decode, const char* verdict, double cost_ms) {
  v1::ScoredPair pair;
  pair.set_prefill_worker(prefill);
  pair.set_decode_worker(decode);
  pair.set_verdict(verdict);
  pair.set_cost_ms(cost_ms);
  return pair;
}

v1::Explanation Chosen() {
  v1::Explanation explanation;
  explanation.set_prompt_tokens(200);
  v1::ScoredPair& chosen = *explanation.add_candidates();
  chosen = Pair("p0", "d0", "chosen", 5);
  chosen.set_cached_tokens(128);
  chosen.set_prefill_ms(2);
  return explanation;
}

TEST(ReasonOf, NamesTheTermThatDecides) {
  v1::Explanation explanation = Chosen();
  EXPECT_EQ(
      ReasonOf(explanation),
      "Placed on p0 with d0, where 128 of 200 prompt tokens are cached; it is the only choice.");
  v1::ScoredPair& next = *explanation.add_candidates();
  next = Pair("p1", "d0", "higher cost", 9);
  next.set_prefill_ms(6.5);
  next.set_queue_ms(-0.5);
  EXPECT_EQ(ReasonOf(explanation),
            "Placed on p0 with d0, where 128 of 200 prompt tokens are cached; p1 with d0 costs "
            "4.0 ms more, mostly because of less to compute here (4.5 ms).");
}

TEST(ReasonOf, OfTiesAndOfWorkersThatAreOut) {
  v1::Explanation explanation = Chosen();
  *explanation.add_candidates() = Pair("p1", "d0", "tied", 5);
  EXPECT_EQ(ReasonOf(explanation),
            "Placed on p0 with d0, where 128 of 200 prompt tokens are cached; p1 with d0 costs the "
            "same.");
  *explanation.mutable_candidates(1) = Pair("", "d1", "no room", 1);
  EXPECT_EQ(ReasonOf(explanation),
            "Placed on p0 with d0, where 128 of 200 prompt tokens are cached; the next pair, d1 "
            "alone, is out: no room.");
  EXPECT_EQ(ReasonOf({}), "");
}

}  // namespace
}  // namespace penstock
