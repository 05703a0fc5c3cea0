#include "model/cuda/mtp/mtp_rows.h"

namespace penstock {
namespace {

// True if `part` begins with the token behind the last one of `previous`, of the same sequence.
bool Follows(const SequenceStep& part, const SequenceStep* previous) {
  return previous != nullptr && previous->fills_mtp &&
         previous->blocks.data() == part.blocks.data() &&
         previous->position + std::ssize(previous->tokens) == part.position;
}

}  // namespace

void MtpRows::Add(const SequenceStep& part, const SequenceStep* previous, int32_t first_row,
                  int32_t first_kept, int32_t hidden) {
  const bool follows = Follows(part, previous);
  for (int32_t i = 0; i < std::ssize(part.tokens); ++i) {
    const bool known = i > 0 || follows;
    if (!known) {
      given_.push_back({.first = std::ssize(rows_), .count = 1});
      before_.insert(before_.end(), part.before.begin(), part.before.end());
      before_.resize(before_.size() + static_cast<size_t>(hidden) - part.before.size());
    }
    rows_.push_back(first_row + i);
    states_.push_back(known ? static_cast<uint32_t>(first_kept + i - 1) : 0);
  }
}

void MtpRows::AddGiven(const SequenceStep& part) {
  if (given_.empty()) given_.push_back({});
  given_.front().count += std::ssize(part.tokens);
  before_.insert(before_.end(), part.before.begin(), part.before.end());
}

std::vector<int32_t> MtpRows::JoinedOrder(int32_t rows) {
  std::vector<int32_t> order;
  for (int32_t row = 0; row < rows; ++row) order.insert(order.end(), {row, rows + row});
  return order;
}

}  // namespace penstock
