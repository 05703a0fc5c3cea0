#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// Searches streamed text for stop strings (Aho and Corasick, CACM 1975) and withholds text that may
// be the beginning of one. The result does not depend on how the text is divided into calls: the
// stop string that ends first matches, and the longest of those that end together. Copies share the
// automaton and are otherwise independent. One thread at a time.
class StopMatcher {
 public:
  static constexpr size_t kMaxStops = 16;
  static constexpr size_t kMaxStopBytes = 256;

  struct Result {
    std::string text;            // may be emitted; valid UTF-8 if the input is
    std::optional<size_t> stop;  // index of the matched stop string, set once
  };

  // Returns INVALID_ARGUMENT for more than kMaxStops strings, or a string that is not
  // 1..kMaxStopBytes bytes of UTF-8. With `include_stop` the emitted text ends with the matched
  // stop string; otherwise it ends before it.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops,
                                            bool include_stop = false);

  // `text` must end at the end of a code point. After a match, further text is dropped.
  Result Feed(std::string_view text);
  // Ends the stream: returns the withheld text, because no stop string can follow.
  std::string Flush();

  bool matched() const { return matched_; }

 private:
  // A node of the automaton over the bytes of the stop strings. A node has at most as many children
  // as there are stop strings, so a list of siblings is fast enough.
  struct Node {
    uint8_t byte = 0;          // the byte on the edge from the parent
    int32_t depth = 0;         // length in bytes of the prefix of this node
    int32_t first_child = -1;  // -1: none
    int32_t next_sibling = -1;
    int32_t fail = 0;   // node of the longest proper suffix that is a prefix of a stop string
    int32_t stop = -1;  // longest stop string that ends here, or -1
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

  // Shared by copies, one for each choice of a request.
  std::shared_ptr<const Automaton> automaton_;
  std::string held_;
  int32_t state_ = 0;
  bool include_stop_ = false;
  bool matched_ = false;
};

}  // namespace penstock
