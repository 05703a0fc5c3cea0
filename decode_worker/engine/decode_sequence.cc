#include "decode_worker/engine/decode_sequence.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/page_copier.h"
#include "kvstore/cache/passed_blocks.h"

namespace penstock {
namespace {

// Gives `sequence` the blocks of `held`: shared where full, its own copy where partial.
void ShareBlocks(DecodeSequence& sequence, const DecodeSequence& first, const PagedKv& kv) {
  const auto full = static_cast<size_t>(first.tokens_held / kv.layout.block_tokens);
  for (size_t i = 0; i < first.passed; ++i) sequence.Append({});
  for (size_t i = first.passed; i < full; ++i) sequence.Append(first.blocks[i].Share());
  sequence.PassBlocks(first.passed);
  if (full == first.blocks.size()) return;
  BlockRef copy = std::move(sequence.session->growth.Take(1).front());
  sequence.session->growth.HoldRow(copy);
  const uint32_t to = copy.id(), from = first.blocks[full].id();
  std::vector<std::byte> page(kv.layout.PayloadBytes());
  ReadPages(kv, {&from, 1}, 0, page.size(), page.data());
  WritePages(kv, {&to, 1}, 0, page.size(), page.data());
  sequence.Append(std::move(copy));
}

}  // namespace

bool DecodeSequence::needs_block(int32_t block_tokens, int32_t more) const {
  return blocks.size() < static_cast<size_t>((tokens_held + more - 1) / block_tokens) + 1;
}

void DecodeSequence::Append(BlockRef block) {
  table.push_back(block.id());
  blocks.push_back(std::move(block));
}

std::optional<int32_t> DecodeSequence::FillingGuess() const {
  if (observed() == 0) return std::nullopt;
  const int32_t filling = static_cast<int32_t>(session->eviction->limit()) - tokens_held - 1;
  return filling <= std::ssize(guesses) ? std::optional(filling) : std::nullopt;
}

void DecodeSequence::SetFirstPart() {
  first_part.clear();
  if (const std::optional<int32_t> filling = FillingGuess()) {
    const auto again = static_cast<size_t>(std::max(0, observed() - 1 - *filling));
    const size_t recent = std::min(again, tail.size());
    const size_t older = again - recent;
    PENSTOCK_CHECK_LE(older, before_tail.size());
    first_part.assign(before_tail.end() - static_cast<std::ptrdiff_t>(older), before_tail.end());
    first_part.insert(first_part.end(), tail.end() - static_cast<std::ptrdiff_t>(recent),
                      tail.end());
  }
  first_part.push_back(last_token);
}

PageSelection DecodeSequence::Selection() const {
  PageSelection selection = session->selection;
  selection.checked = position() + 1;
  return selection;
}

std::vector<BlockRef> DecodeSequence::PassBlocks(size_t first) {
  passed = first;
  return first == 0 ? std::vector<BlockRef>() : TakePassed(blocks, table, first);
}

absl::Status DecodeSequence::CheckFreeze(const FreezeRequest& request,
                                         const KvLayout& layout) const {
  const std::vector<BlockId>& ids = session->prompt.ids;
  const size_t named = ids.size() * static_cast<size_t>(layout.block_tokens);
  const size_t wanted = request.tokens.size();
  if (session->beams != nullptr) {
    return FailedPrecondition("a beam search does not move; start it again elsewhere");
  }
  if (wanted < named || wanted > static_cast<size_t>(position()) ||
      request.prompt.root != session->prompt.root ||
      !std::equal(ids.begin(), ids.end(), request.prompt.ids.begin()) ||
      !std::equal(request.tokens.begin() + static_cast<std::ptrdiff_t>(named), request.tokens.end(),
                  tail.begin())) {
    return FailedPrecondition(
        "this worker has other tokens than the {} of the request; replan from the client's tokens",
        wanted);
  }
  const size_t behind = wanted - named;
  const uint32_t next = behind < tail.size() ? tail[behind] : last_token;
  if (next != request.last_token) {
    return FailedPrecondition(
        "token {} follows the {} tokens of the request here, and the request says {}; replan", next,
        wanted, request.last_token);
  }
  if (session->eviction &&
      session->eviction->EvictedAt(session->prompt_tokens, static_cast<uint32_t>(wanted)) !=
          static_cast<uint32_t>(evicted)) {
    return FailedPrecondition(
        "the sequence is {} tokens ahead of the request here, and has been compacted since; replan",
        static_cast<size_t>(position()) - wanted);
  }
  const auto end = static_cast<int64_t>(wanted);
  if (static_cast<size_t>(layout.FirstBlock(end)) < passed ||
      static_cast<size_t>(layout.FirstGroupBlock(end)) < CountWithoutRows(blocks, layout)) {
    return FailedPrecondition(
        "the sequence is {} tokens ahead of the request here, and has freed blocks that its window "
        "has passed since; replan",
        static_cast<size_t>(position()) - wanted);
  }
  return absl::OkStatus();
}

std::shared_ptr<DecodeSession> MakeSession(DecodeJob& job) {
  return std::make_shared<DecodeSession>(
      DecodeSession{.key = job.key,
                    .prompt = std::move(job.prompt),
                    .access = job.access,
                    .sampling = std::move(job.sampling),
                    .stop = std::move(job.stop),
                    .growth = std::move(job.growth),
                    .exchanges = job.exchanges,
                    .owed = {},
                    .swap = std::move(job.swap),
                    .sink = std::move(job.sink),
                    .eviction = job.eviction,
                    .prompt_tokens = static_cast<uint32_t>(job.prompt_tokens),
                    .selection = job.selection,
                    .blended = job.blended,
                    .choices_open = 0,
                    .choices_frozen = 0});
}

DecodeSequence MakeSequence(const std::shared_ptr<DecodeSession>& session, const DecodeJob& job,
                            uint32_t choice, int32_t block_tokens) {
  const size_t named = session->prompt.ids.size() * static_cast<size_t>(block_tokens);
  const auto behind = job.tokens.begin() + static_cast<std::ptrdiff_t>(named);
  const size_t observed = session->eviction && session->eviction->EvictsAnswer()
                              ? CompactionScores::Observed(*session->eviction)
                              : 0;
  const auto observable = static_cast<std::ptrdiff_t>(std::min(named, observed));
  return {.id = 0,
          .session = session,
          .choice = choice,
          .sampler = MakeSampler(session->sampling, choice, job.tokens, job.prompt_tokens),
          .blocks = {},
          .table = {},
          .passed = 0,
          .kept = session->prompt.ids.size(),
          .tokens_held = static_cast<int32_t>(job.tokens.size()) - job.evicted,
          .evicted = job.evicted,
          .last_token = 0,
          .tail = {behind, job.tokens.end()},
          .freezes = {},
          .guesses = {},
          .before_tail = {behind - observable, behind}};
}

std::vector<DecodeSequence> ForkChoices(DecodeJob job, const PagedKv& kv) {
  const std::shared_ptr<DecodeSession> session = MakeSession(job);
  std::vector<DecodeSequence> sequences;
  for (const v1::TokenOut& token : job.first) {
    if (token.finish() != v1::TokenOut::GOING_ON) continue;
    DecodeSequence sequence = MakeSequence(session, job, token.choice(), kv.layout.block_tokens);
    sequence.last_token = token.token();
    sequence.sampler.Observe(token.token());
    if (sequences.empty()) {
      const size_t passed = CountPassed(job.blocks);
      for (BlockRef& block : job.blocks) sequence.Append(std::move(block));
      sequence.PassBlocks(passed);
    } else {
      ShareBlocks(sequence, sequences.front(), kv);
    }
    sequences.push_back(std::move(sequence));
  }
  session->choices_open = static_cast<int>(sequences.size());
  return sequences;
}

}  // namespace penstock
