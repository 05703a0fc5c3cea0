#include "lab/simulate/sim_router.h"

#include <algorithm>

#include "lab/simulate/sim_ids.h"

namespace penstock {
namespace {

constexpr KvFormat kFormat{.model_fingerprint = 1, .layout_fingerprint = 1, .block_tokens = 16};

TimePoint TimeOf(double seconds) {
  return TimePoint(std::chrono::duration_cast<Duration>(std::chrono::duration<double>(seconds)));
}

Candidate DecodeCandidate(const SimDecodeView& view, const StepModel& step) {
  return {.format = kFormat,
          .blocks_total = view.blocks_total,
          .blocks_taken = view.blocks_taken,
          .requests = static_cast<uint32_t>(view.requests),
          .context_tokens = view.context_tokens,
          .step = step};
}

// The time before a worker takes the next prompt, with its reads from other workers.
double WorkMs(const PlacementTerms& terms) {
  return terms.prefill_ms + terms.restore_ms + terms.fetch_ms;
}

}  // namespace

SimRouter::SimRouter(const Options& options, PrefixIndex& index)
    : options_(options), index_(index), queues_(options.workers), random_(options.seed) {}

Candidate SimRouter::PrefillCandidate(uint32_t worker, const SimRequest& request,
                                      TimePoint now) const {
  const PrefixMatches::Hit& hit = matches_.of(worker);
  const uint32_t tokens = std::min(hit.blocks * options_.block_tokens, request.prompt_tokens - 1);
  const auto expected = hit.in_tier[static_cast<size_t>(BlockTier::kExpected)];
  return {.format = kFormat,
          .queue_ms = queues_[worker].WaitMs(now),
          .recent_work_ms = queues_[worker].RecentWorkMs(now),
          .long_term_work_ms = queues_[worker].LongTermWorkMs(now),
          .cached = {.tokens = tokens, .expected_tokens = expected * options_.block_tokens},
          .prefill = prefill_.model(),
          .link = options_.link,
          .pull = options_.pull};
}

absl::StatusOr<SimPlaced> SimRouter::Place(uint32_t id, const SimRequest& request, double now_s,
                                           const std::vector<SimDecodeView>& decode) {
  const std::vector<BlockId> ids = SimBlockIds(request.blocks);
  index_.Find(ids, matches_);
  const TimePoint now = TimeOf(now_s);
  sources_.clear();
  PlacementInput input{
      .need = {.prompt_tokens = request.prompt_tokens, .answer_tokens = request.answer_tokens},
      .policy = options_.policy,
      .random = random_()};
  input.prefill.reserve(options_.workers);
  for (uint32_t worker = 0; worker < options_.workers; ++worker) {
    input.prefill.push_back(PrefillCandidate(worker, request, now));
    if (!options_.pull || input.prefill.back().cached.tokens == 0) continue;
    input.sources.push_back({.format = kFormat, .cached = input.prefill.back().cached});
    sources_.push_back(worker);
  }
  for (const SimDecodeView& view : decode) {
    input.decode.push_back(DecodeCandidate(view, options_.step));
  }
  if (decode.empty()) input.decode.push_back({.format = kFormat});
  ASSIGN_OR_RETURN(const Placement placement, penstock::Place(input));
  const auto worker = static_cast<uint32_t>(placement.workers.prefill);
  queues_[worker].Add(id, WorkMs(placement.terms), now);
  if (options_.predictions) index_.Expect(worker, nullptr, ids);
  SimPlaced placed{.prefill = {.worker = worker},
                   .decode = static_cast<uint32_t>(placement.workers.decode),
                   .predicted = placement.terms};
  if (placement.fetch) {
    placed.prefill.reach_blocks = matches_.of(sources_[placement.fetch->source]).blocks;
  }
  return placed;
}

void SimRouter::OnFirstToken(uint32_t id, uint32_t worker, double now_s) {
  queues_[worker].Remove(id, TimeOf(now_s));
}

}  // namespace penstock
