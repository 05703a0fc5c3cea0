#include "model/grammar/codepoint_set.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr CodepointSet::Range kText[] = {{1, 0xD7FF}, {0xE000, 0x10FFFF}};

// Sorted, and joined where they overlap or touch.
std::vector<CodepointSet::Range> Joined(std::vector<CodepointSet::Range> ranges) {
  std::ranges::sort(ranges);
  std::vector<CodepointSet::Range> joined;
  for (const auto& [first, last] : ranges) {
    if (!joined.empty() && first <= joined.back().second + 1) {
      joined.back().second = std::max(joined.back().second, last);
    } else {
      joined.emplace_back(first, last);
    }
  }
  return joined;
}

}  // namespace

CodepointSet::CodepointSet(std::vector<Range> ranges) {
  for (const auto& [first, last] : Joined(std::move(ranges))) {
    for (const auto& [least, greatest] : kText) {
      const uint32_t from = std::max(first, least), to = std::min(last, greatest);
      if (from <= to) ranges_.emplace_back(from, to);
    }
  }
}

CodepointSet CodepointSet::All() { return CodepointSet({{0, 0x10FFFF}}); }

uint32_t CodepointSet::size() const {
  uint32_t size = 0;
  for (const auto& [first, last] : ranges_) size += last - first + 1;
  return size;
}

bool CodepointSet::contains(uint32_t codepoint) const {
  return std::ranges::any_of(ranges_, [codepoint](const Range& range) {
    return range.first <= codepoint && codepoint <= range.second;
  });
}

CodepointSet CodepointSet::Union(const CodepointSet& other) const {
  std::vector<Range> both = ranges_;
  both.insert(both.end(), other.ranges_.begin(), other.ranges_.end());
  return CodepointSet(std::move(both));
}

CodepointSet CodepointSet::Without(const CodepointSet& other) const {
  std::vector<Range> left;
  for (auto [first, last] : ranges_) {
    for (const auto& [from, to] : other.ranges_) {
      if (to < first) continue;
      if (from > last) break;
      if (from > first) left.emplace_back(first, from - 1);
      first = to + 1;
    }
    if (first <= last) left.emplace_back(first, last);
  }
  return CodepointSet(std::move(left));
}

}  // namespace penstock
