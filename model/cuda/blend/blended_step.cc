#include "model/cuda/blend/blended_step.h"

#include <algorithm>

#include "kernels/blend/deviation.h"
#include "model/forward/blended_rows.h"

namespace penstock {
namespace {

// The rows of a blended sequence that are computed further, counted from its first.
std::vector<uint32_t> ChosenOf(std::span<const float> squares, BlendedTokens& blended) {
  std::vector<float> tokens;
  double differences = 0, values = 0;
  for (size_t i = 0; i < squares.size(); i += 2) {
    tokens.push_back(squares[i]);
    differences += squares[i];
    values += squares[i + 1];
  }
  return ChooseBlended(tokens, RelativeDeviation(differences, values), blended);
}

// Adds runs of neighbouring rows as parts of their own.
void AddRuns(const SequenceStep& sequence, std::span<const uint32_t> chosen, int32_t first_row,
             BlendedStep& step) {
  for (size_t i = 0; i < chosen.size();) {
    const uint32_t begin = chosen[i];
    uint32_t end = begin;
    for (; i < chosen.size() && chosen[i] == end; ++i, ++end) {
      step.rows.push_back(first_row + static_cast<int32_t>(end));
    }
    step.sequences.push_back({.tokens = sequence.tokens.subspan(begin, end - begin),
                              .position = sequence.position + static_cast<int32_t>(begin),
                              .blocks = sequence.blocks,
                              .prompt = sequence.prompt});
  }
}

}  // namespace

bool IsBlended(std::span<const SequenceStep> sequences) {
  return !sequences.empty() && sequences.back().blended != nullptr;
}

int64_t RowsBeforeBlended(std::span<const SequenceStep> sequences) {
  int64_t rows = 0;
  for (const SequenceStep& sequence : sequences) {
    if (sequence.blended == nullptr) rows += std::ssize(sequence.tokens);
  }
  return rows;
}

BlendedStep ChooseRows(std::span<const SequenceStep> sequences, std::span<const float> squares) {
  BlendedStep step;
  int32_t row = 0;
  size_t compared = 0;
  for (const SequenceStep& sequence : sequences) {
    const size_t count = sequence.tokens.size();
    if (sequence.blended == nullptr) {
      for (size_t i = 0; i < count; ++i) step.rows.push_back(row + static_cast<int32_t>(i));
      step.sequences.push_back(sequence);
    } else {
      AddRuns(sequence, ChosenOf(squares.subspan(compared, 2 * count), *sequence.blended), row,
              step);
      compared += 2 * count;
    }
    row += static_cast<int32_t>(count);
  }
  return step;
}

}  // namespace penstock
