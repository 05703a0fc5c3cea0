#include "decode_worker/decode_admission.h"

#include <algorithm>
#include <utility>

#include "decode_worker/decode_job.h"

namespace penstock {

DecodeNeed NeedOf(const KvLayout& layout, int64_t tokens, int64_t more, int64_t choices) {
  const auto blocks = [&](int64_t answer) {
    return layout.BlocksFor(tokens) + DecodeGrowthBlocks(layout, tokens, answer, choices);
  };
  return {.held_max = (tokens - 1) / layout.block_tokens,
          .blocks_now = blocks(std::min<int64_t>(more, layout.block_tokens)),
          .blocks_max = blocks(more)};
}

std::optional<PendingAdmission::Admitted> PendingAdmission::Try(
    const PromptBlocks& prompt, const std::function<void()>& on_restored) {
  if (!admission_) TakeBlocks(prompt, on_restored);
  if (!admission_ || !context_.cache.FinishRestore(prompt, admission_)) return std::nullopt;
  if (!admission_) return std::nullopt;
  return Admitted{.blocks = *std::exchange(admission_, std::nullopt), .swap = std::move(swap_)};
}

// A session that can be swapped out needs no blocks for its longest answer yet. Swapped-out
// sessions resume before new ones are admitted.
void PendingAdmission::TakeBlocks(const PromptBlocks& prompt,
                                  const std::function<void()>& on_restored) {
  if (context_.engine.preempted() > 0) return;
  swap_ = {};
  SwapReservation reservation = context_.swap_budget.Reserve(need_.blocks_max);
  const int64_t room = context_.blocks_total - need_.blocks_now;
  const bool alone = context_.engine.running() == 0;
  admission_ = context_.cache.Admit(
      prompt, {.held_max = need_.held_max,
               .blocks = reservation ? need_.blocks_now : need_.blocks_max,
               .left = reservation && !alone ? std::min(context_.watermark, room) : 0,
               .on_restored = on_restored});
  if (admission_) swap_ = std::move(reservation);
}

}  // namespace penstock
