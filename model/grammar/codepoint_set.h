#pragma once

#include <cstdint>
#include <utility>
#include <vector>

namespace penstock {

// A set of Unicode code points, without U+0000 and surrogates, as sorted ranges that do not touch.
class CodepointSet {
 public:
  using Range = std::pair<uint32_t, uint32_t>;  // first and last

  CodepointSet() = default;
  explicit CodepointSet(std::vector<Range> ranges);
  static CodepointSet All();

  bool empty() const { return ranges_.empty(); }
  uint32_t size() const;
  bool contains(uint32_t codepoint) const;
  const std::vector<Range>& ranges() const { return ranges_; }

  CodepointSet Union(const CodepointSet& other) const;
  CodepointSet Without(const CodepointSet& other) const;

 private:
  std::vector<Range> ranges_;
};

}  // namespace penstock
