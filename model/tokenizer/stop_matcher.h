#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// Looks for stop strings in streamed text and holds back what may be the beginning of one. The
// result does not depend on how the text was cut into pieces: the stop that ends first wins, the
// longest of those that end together. Copies are cheap and independent. One thread at a time.
class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 16;
  static constexpr size_t kMaxStopBytes = 256;

  struct Result {
    std::string text;            // may be shown now; valid UTF-8 if what was fed was
    std::optional<size_t> stop;  // index of the stop string that matched, once
  };

  // INVALID_ARGUMENT for more than kMaxStops, or one not of 1..kMaxStopBytes bytes of UTF-8. With
  // `include_stop` the matched stop string ends the emitted text; otherwise it is cut off.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops,
                                            bool include_stop = false);

  // `text` must end on a code point's end. After a match all further text is swallowed.
  Result Feed(std::string_view text);
  // The end of the stream: what was held back, as no stop can follow.
  std::string Flush();

  bool matched() const { return matched_; }

 private:
  // A node of the Aho-Corasick automaton over the bytes of the stops. No node has more children
  // than there are stops, so a list of siblings is searched quickly.
  struct Node {
    uint8_t byte = 0;          // on the edge from the parent
    int32_t depth = 0;         // bytes of the prefix this node stands for
    int32_t first_child = -1;  // -1: none
    int32_t next_sibling = -1;
    int32_t fail = 0;   // the node of the longest proper suffix that is a prefix of some stop
    int32_t stop = -1;  // the longest stop that ends here, or -1
  };

  struct Automaton {
    std::vector<Node> nodes;
    std::vector<std::string> stops;

    void AddStop(std::string_view stop, int32_t index);
    void LinkFailures();
    int32_t Child(int32_t node, uint8_t byte) const;
    int32_t Next(int32_t node, uint8_t byte) const;
  };

  StopMatcher() = default;

  std::shared_ptr<const Automaton> automaton_;  // shared by copies, one per choice of a request
  std::string held_;
  int32_t state_ = 0;
  bool include_stop_ = false;
  bool matched_ = false;
};

}  // namespace penstock
