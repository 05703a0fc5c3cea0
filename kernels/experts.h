#pragma once

#include <cstdint>

#include "kernels/device.h"
#include "kernels/view.h"

namespace penstock {

struct ScoreRowsArgs {
  View<const float, 2> input;    // [tokens, hidden]
  View<const float, 2> vectors;  // [scores, hidden]
  View<float, 2> output;         // [tokens, scores]
};

// The choice of experts for each token of a mixture of experts.
struct RouteArgs {
  View<const float, 2> input;      // [tokens, hidden]
  View<const float, 2> router;     // [experts, hidden]
  View<const float, 1> bias = {};  // of the scores, [experts], or null
  bool normalise = false;          // the weights of a token's experts add up to 1, before `scale`
  bool sigmoid = false;            // an expert's weight is the sigmoid of its score, not a softmax
  View<const float, 1> choice_bias = {};  // [experts], or null: decides the choice, but no weight
  // The experts form `groups` groups of equal size. A token uses experts of its best `kept_groups`
  // groups only.
  int32_t groups = 1;
  int32_t kept_groups = 1;  // they have at least as many experts as a token needs
  float scale = 1;          // of all weights
  View<float, 2> scores;    // scratch, [tokens, experts]
  View<int32_t, 2> chosen;  // out, [tokens, experts per token]: ids, highest score first
  View<float, 2> weights;   // out, [tokens, experts per token]
};

namespace cpu {
void ScoreRows(const Exec& exec, const ScoreRowsArgs& args);
void Route(const Exec& exec, const RouteArgs& args);
}  // namespace cpu

// output = input * vectors^T, in f32 on every machine.
inline void ScoreRows(const Exec& exec, const ScoreRowsArgs& args) { cpu::ScoreRows(exec, args); }

// Scores are router * input (ScoreRows) + bias. The experts with the highest scores are chosen; of
// equal scores, those with lower ids. A chosen expert's weight is its softmax over all experts, or
// over the chosen ones if `normalise`. A token's choice depends on its own row only.
// With `sigmoid` the experts are chosen by the sigmoid of the score plus choice_bias, and the best
// groups are those with the highest sums of their two best experts. Without, a group is as good as
// its best expert. Of equal groups, those with lower ids are kept.
inline void Route(const Exec& exec, const RouteArgs& args) { cpu::Route(exec, args); }

}  // namespace penstock
