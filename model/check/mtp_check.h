#pragma once

#include "base/status.h"
#include "model/forward/runner_check.h"
#include "model/weights/weights.h"

namespace penstock {

// Changes small random weights (SmallWeightsLike) that have a layer for multi-token prediction: its
// norms differ from 1 and from the model's, and with experts the layer's input has the signs of the
// token's embedding that decide the choice of experts (MakeChoicesClear), so that rounding does
// not.
void MakeMtpClear(Weights& weights);

// Compares the layer for multi-token prediction (MtpLayer) of two runners with the same weights, in
// the pages that CheckRunner uses. Both compute a prompt in two chunks, with the layer's keys and
// values, and two guesses behind it, the second from the layer's own hidden state: hidden states
// and logits must be near those of `reference`, and so must those of guesses from the same pages
// and hidden state. In pages of few bits only the latter are close. OK if the checked runner has no
// such layer. FAILED_PRECONDITION names the first difference. One thread.
absl::Status CheckMtp(const CheckedRunner& checked, const CheckedRunner& reference);

}  // namespace penstock
