#include "lab/plan/trace_traffic.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "lab/replay/cache_replay.h"

namespace penstock {
namespace {

constexpr char kPolicy[] = "cost";  // the workers' default

BlockId BlockIdOf(uint32_t number) {
  BlockId id;
  std::memcpy(id.bytes.data(), &number, sizeof(number));
  return id;
}

// A request of the trace names each full block, and may name the rest.
absl::Status CheckBlocks(const SimTrace& trace) {
  for (const SimRequest& request : trace.requests) {
    const size_t full = request.prompt_tokens / trace.block_tokens;
    const size_t named = request.blocks.size();
    if (named == full || named == full + 1) continue;
    return InvalidArgument(
        "a request of the trace has {} hash_ids for {} tokens, which are {} blocks of {}; set the "
        "size of the trace's blocks by --trace-block-tokens",
        named, request.prompt_tokens, full + 1, trace.block_tokens);
  }
  return absl::OkStatus();
}

CacheTrace BlocksOf(const SimTrace& trace) {
  CacheTrace blocks;
  for (const SimRequest& from : trace.requests) {
    CacheRequest request{
        .at_s = from.arrival_s,
        .partial_tail = from.blocks.size() * trace.block_tokens > from.prompt_tokens};
    for (const uint32_t block : from.blocks) request.blocks.push_back(BlockIdOf(block));
    blocks.requests.push_back(std::move(request));
  }
  return blocks;
}

Traffic MeansOf(const SimTrace& trace, double requests_per_s) {
  Traffic means{.requests_per_s = requests_per_s, .prompt_tokens = 0, .answer_tokens = 0};
  double steps = 0, context = 0, held = 0;
  for (const SimRequest& request : trace.requests) {
    const double prompt = request.prompt_tokens, answer = std::max(1u, request.answer_tokens);
    means.prompt_tokens += prompt;
    means.answer_tokens += answer;
    means.longest_tokens = std::max(means.longest_tokens, prompt + answer);
    means.longest_prompt_tokens = std::max(means.longest_prompt_tokens, prompt);
    steps += answer;
    context += answer * (prompt + answer / 2);
    held += answer * (prompt + answer);
  }
  const auto count = static_cast<double>(trace.requests.size());
  means.prompt_tokens /= count;
  means.answer_tokens /= count;
  means.context_tokens = context / steps;
  means.held_tokens = held / steps;
  return means;
}

}  // namespace

TraceTraffic::TraceTraffic(SimTrace trace, double requests_per_s)
    : trace_(std::move(trace)),
      blocks_(BlocksOf(trace_)),
      means_(MeansOf(trace_, requests_per_s)) {}

absl::StatusOr<TraceTraffic> TraceTraffic::Of(SimTrace trace,
                                              std::optional<double> requests_per_s) {
  if (trace.requests.size() < 2) return InvalidArgument("a plan needs a trace of two requests");
  RETURN_IF_ERROR(CheckBlocks(trace));
  const double span_s = trace.requests.back().arrival_s - trace.requests.front().arrival_s;
  if (!requests_per_s && span_s <= 0) {
    return InvalidArgument("all requests of the trace arrive at once; set --rate");
  }
  const double rate = requests_per_s.value_or(static_cast<double>(trace.requests.size()) / span_s);
  return TraceTraffic(std::move(trace), rate);
}

absl::StatusOr<Traffic> TraceTraffic::At(int64_t cache_tokens) const {
  const int64_t blocks =
      std::min<int64_t>(cache_tokens / trace_.block_tokens, trace_.unique_blocks);
  std::vector<size_t> hits(trace_.requests.size(), 0);
  if (blocks > 0) {
    ASSIGN_OR_RETURN(hits, ReplayHits(blocks_, {.policy = kPolicy, .capacity = blocks}));
  }
  Traffic traffic = means_;
  double cached = 0;
  for (size_t i = 0; i < hits.size(); ++i) {
    const double tokens = trace_.requests[i].prompt_tokens;
    // One token is always computed.
    const double found = std::min(static_cast<double>(hits[i] * trace_.block_tokens), tokens - 1);
    cached += found;
    traffic.prompts.push_back({.tokens = tokens, .cached = found});
  }
  traffic.hit_ratio = cached / (traffic.prompt_tokens * static_cast<double>(hits.size()));
  return traffic;
}

absl::StatusOr<Traffic> TraceTraffic::Unlimited() const {
  return At(int64_t{trace_.unique_blocks} * trace_.block_tokens);
}

// More workers have larger caches, so they need less time in all: the smallest number that is
// enough is found by bisection.
absl::StatusOr<TracePlan> PlanForTrace(PlanRequest request, const TraceTraffic& trace) {
  ASSIGN_OR_RETURN(request.traffic, trace.At(0));
  ASSIGN_OR_RETURN(CapacityPlan plan, MakePlan(request));
  const int64_t cache_tokens = plan.prefill_cache_tokens;
  int64_t low = 1, high = plan.prefill.workers;
  while (low < high) {
    const int64_t workers = low + (high - low) / 2;
    ASSIGN_OR_RETURN(request.traffic, trace.At(workers * cache_tokens));
    ASSIGN_OR_RETURN(plan, MakePlan(request));
    if (plan.prefill.workers <= workers) {
      high = workers;
    } else {
      low = workers + 1;
    }
  }
  ASSIGN_OR_RETURN(const Traffic unlimited, trace.Unlimited());
  request.prefill_workers_min = low;
  ASSIGN_OR_RETURN(request.traffic, trace.At(low * cache_tokens));
  ASSIGN_OR_RETURN(plan, MakePlan(request));
  plan.hit_ratio_max = unlimited.hit_ratio;
  return TracePlan{std::move(request), std::move(plan)};
}

}  // namespace penstock
