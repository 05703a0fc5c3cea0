#include "router/session/journal.h"

#include <algorithm>

namespace penstock {

Journal::Journal(uint32_t choices, uint32_t max_tokens)
    : choices_(choices), max_tokens_(max_tokens) {}

absl::StatusOr<std::vector<v1::TokenOut>> Journal::Accept(const v1::TokenOut& token) {
  if (token.choice() >= choices_.size() || token.position() >= max_tokens_) {
    return DataLoss("a worker sent position {} of choice {}; asked for are {} of {}",
                    token.position(), token.choice(), max_tokens_, choices_.size());
  }
  Choice& choice = choices_[token.choice()];
  std::vector<v1::TokenOut> in_order;
  if (choice.ended) return in_order;
  if (token.position() < choice.answered.size()) {
    if (choice.answered[token.position()] == token.token()) return in_order;
    return DataLoss("a worker sent token {} at position {} of choice {}, where {} was answered",
                    token.token(), token.position(), token.choice(),
                    choice.answered[token.position()]);
  }
  choice.early.emplace(token.position(), token);
  auto next = choice.early.begin();
  while (next != choice.early.end() && next->first == choice.answered.size()) {
    choice.answered.push_back(next->second.token());
    in_order.push_back(std::move(next->second));
    next = choice.early.erase(next);
    if (in_order.back().finish() != v1::TokenOut::GOING_ON) {
      End(token.choice());
      break;
    }
  }
  return in_order;
}

void Journal::End(uint32_t choice) {
  choices_[choice].ended = true;
  choices_[choice].early.clear();
}

bool Journal::all_ended(uint32_t first, uint32_t count) const {
  return std::all_of(choices_.begin() + first, choices_.begin() + first + count,
                     [](const Choice& choice) { return choice.ended; });
}

void Journal::DropEarly(uint32_t first, uint32_t count) {
  for (uint32_t i = first; i < first + count; ++i) choices_[i].early.clear();
}

std::vector<ChoiceGroup> Journal::OpenGroups(uint32_t first, uint32_t count) const {
  std::vector<ChoiceGroup> groups;
  for (uint32_t i = first; i < first + count; ++i) {
    if (choices_[i].ended) continue;
    const bool joins = !groups.empty() && groups.back().first + groups.back().count == i &&
                       groups.back().answered == choices_[i].answered;
    if (joins) {
      ++groups.back().count;
    } else {
      groups.push_back({.first = i, .count = 1, .answered = choices_[i].answered});
    }
  }
  return groups;
}

}  // namespace penstock
