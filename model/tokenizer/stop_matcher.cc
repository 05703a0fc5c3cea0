#include "model/tokenizer/stop_matcher.h"

#include <queue>

#include "base/utf8.h"

namespace penstock {

absl::StatusOr<StopMatcher> StopMatcher::Create(std::vector<std::string> stops, bool include_stop) {
  if (stops.size() > kMaxStops) {
    return InvalidArgument("stop has {} strings, the limit is {}", stops.size(), kMaxStops);
  }
  auto automaton = std::make_shared<Automaton>();
  automaton->nodes.emplace_back();
  for (size_t i = 0; i < stops.size(); ++i) {
    const std::string& stop = stops[i];
    if (stop.empty() || stop.size() > kMaxStopBytes) {
      return InvalidArgument("stop[{}] has {} bytes, the limits are 1 and {}", i, stop.size(),
                             kMaxStopBytes);
    }
    if (FirstInvalidUtf8(stop) != std::string_view::npos) {
      return InvalidArgument("stop[{}] is not valid UTF-8", i);
    }
    automaton->AddStop(stop, static_cast<int32_t>(i));
  }
  automaton->LinkFailures();
  automaton->stops = std::move(stops);
  StopMatcher matcher;
  matcher.automaton_ = std::move(automaton);
  matcher.include_stop_ = include_stop;
  return matcher;
}

int32_t StopMatcher::Automaton::Child(int32_t node, uint8_t byte) const {
  int32_t child = nodes[node].first_child;
  while (child >= 0 && nodes[child].byte != byte) child = nodes[child].next_sibling;
  return child;
}

// Returns the node of the longest suffix of (the node's prefix + byte) that is a prefix of a stop
// string.
int32_t StopMatcher::Automaton::Next(int32_t node, uint8_t byte) const {
  for (;; node = nodes[node].fail) {
    const int32_t child = Child(node, byte);
    if (child >= 0) return child;
    if (node == 0) return 0;
  }
}

void StopMatcher::Automaton::AddStop(std::string_view stop, int32_t index) {
  int32_t node = 0;
  for (char c : stop) {
    const auto byte = static_cast<uint8_t>(c);
    int32_t child = Child(node, byte);
    if (child < 0) {
      child = static_cast<int32_t>(nodes.size());
      Node added;
      added.byte = byte;
      added.depth = nodes[node].depth + 1;
      added.next_sibling = std::exchange(nodes[node].first_child, child);
      nodes.push_back(added);
    }
    node = child;
  }
  if (nodes[node].stop < 0) nodes[node].stop = index;
}

// Breadth-first, so that the failure links of shorter prefixes exist when longer ones need them.
void StopMatcher::Automaton::LinkFailures() {
  std::queue<int32_t> order;
  order.push(0);
  while (!order.empty()) {
    const int32_t at = order.front();
    order.pop();
    const auto& node = nodes[at];
    for (int32_t child = node.first_child; child >= 0; child = nodes[child].next_sibling) {
      Node& to = nodes[child];
      to.fail = at == 0 ? 0 : Next(node.fail, to.byte);
      if (to.stop < 0) to.stop = nodes[to.fail].stop;
      order.push(child);
    }
  }
}

StopMatcher::Result StopMatcher::Feed(std::string_view text) {
  if (matched_) return {};
  for (size_t i = 0; i < text.size(); ++i) {
    state_ = automaton_->Next(state_, static_cast<uint8_t>(text[i]));
    const int32_t stop = automaton_->nodes[state_].stop;
    if (stop < 0) continue;
    matched_ = true;
    held_.append(text.substr(0, i + 1));
    const auto index = static_cast<size_t>(stop);
    if (!include_stop_) held_.resize(held_.size() - automaton_->stops[index].size());
    return {std::exchange(held_, {}), index};
  }
  held_.append(text);
  const size_t keep = static_cast<size_t>(automaton_->nodes[state_].depth);
  Result result{held_.substr(0, held_.size() - keep), std::nullopt};
  held_.erase(0, held_.size() - keep);
  return result;
}

std::string StopMatcher::Flush() { return std::exchange(held_, {}); }

}  // namespace penstock
