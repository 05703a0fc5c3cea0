#include "decode_worker/speculation/draft_lengths.h"

#include <algorithm>

namespace penstock {
namespace {

// A row must gain this many times its cost: rates and times are estimates.
constexpr double kMargin = 1.2;

}  // namespace

std::vector<int32_t> ChooseDraftLengths(std::span<const DraftOffer> offers, const StepCost& cost,
                                        int32_t rows_max) {
  std::vector<int32_t> lengths(offers.size());
  std::vector<double> gains(offers.size());  // expected tokens of each sequence's next row
  for (size_t i = 0; i < offers.size(); ++i) {
    gains[i] = offers[i].tokens > 0 ? offers[i].acceptance : 0;
  }
  if (offers.empty()) return lengths;
  auto expected = static_cast<double>(offers.size());
  double seconds = cost.Seconds(static_cast<int64_t>(offers.size()));
  const double row = cost.SecondsPerRow();
  for (int32_t rows = 0; rows < rows_max; ++rows) {
    const auto best = static_cast<size_t>(std::ranges::max_element(gains) - gains.begin());
    if (gains[best] * seconds <= kMargin * row * expected) break;
    expected += gains[best];
    seconds += row;
    const bool more = ++lengths[best] < offers[best].tokens;
    gains[best] = more ? gains[best] * offers[best].acceptance : 0;
  }
  return lengths;
}

}  // namespace penstock
