#include "decode_worker/engine/decode_admission.h"

#include <algorithm>
#include <utility>

#include "decode_worker/engine/decode_job.h"

namespace penstock {

DecodeNeed NeedOf(const KvLayout& layout, const DecodeSpan& span) {
  const auto blocks = [&](int64_t answer) {
    return layout.BlocksFor(span.tokens) +
           DecodeGrowthBlocks(layout, span.tokens, answer, span.choices);
  };
  DecodeNeed need{.held_max = (span.tokens - 1) / layout.block_tokens,
                  .blocks_now = blocks(std::min<int64_t>(span.more, layout.block_tokens)),
                  .blocks_max = blocks(span.more),
                  .received = span.chunk_tokens == 0 ? span.tokens : 0};
  if (span.limit > 0 && span.tokens + span.more - 1 > span.limit) {
    // Compactions are in place, or into blocks that a choice takes for those that it shares.
    need.blocks_max = span.choices * layout.BlocksFor(span.limit);
    need.blocks_now = std::min(need.blocks_now, need.blocks_max);
  }
  const int64_t step = std::max(span.step_tokens + kMoveLag, span.chunk_tokens);
  // Choices share the rows of the prompt's last blocks; each has those of its answer for itself.
  const int64_t rows = layout.RowsAtOnce(span.tokens + span.more, step);
  const int64_t own = std::min(rows, layout.BlocksFor(span.more) + 1);
  need.rows = std::min(need.blocks_max, rows + (span.choices - 1) * own);
  if (layout.FirstBlock(span.tokens + span.more) == 0) return need;
  // The window passes some blocks. All of a session's blocks are still a bound: short answers share
  // most of theirs.
  need.exchanges = true;
  const int64_t at_once = span.choices * layout.BlocksAtOnce(span.tokens + span.more, step);
  const int64_t passed = layout.FirstBlock(need.received);
  need.blocks_now = std::min(need.blocks_now - passed, at_once);
  need.blocks_max = std::min(need.blocks_max - passed, at_once);
  return need;
}

std::optional<PendingAdmission::Admitted> PendingAdmission::Try(
    const PromptBlocks& prompt, const std::function<void()>& on_restored) {
  if (!admission_) TakeBlocks(prompt, on_restored);
  if (!admission_ || !context_.cache.FinishRestore(prompt, admission_)) return std::nullopt;
  if (!admission_) return std::nullopt;
  const int64_t exchanges = swap_ ? need_.blocks_now : need_.blocks_max;
  return Admitted{.blocks = *std::exchange(admission_, std::nullopt),
                  .swap = std::move(swap_),
                  .exchanges = need_.exchanges ? exchanges : 0};
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
               .exchanges = need_.exchanges,
               .received = need_.received,
               .rows = need_.rows,
               .left = reservation && !alone ? std::min(context_.watermark, room) : 0,
               .on_restored = on_restored});
  if (admission_) swap_ = std::move(reservation);
}

}  // namespace penstock
