#include "router/session/session_request.h"

#include <algorithm>
#include <cstdlib>

#include "kvstore/names/kv_policy.h"
#include "model/grammar/grammar.h"
#include "router/request/answer_shape.h"
#include "router/request/error_detail.h"
#include "router/request/prompt.h"

namespace penstock {
namespace {

constexpr size_t kMaxCacheBytes = 128;

absl::Status CheckCache(const v1::CacheControl& cache) {
  if (cache.salt().size() > kMaxCacheBytes) {
    return BadField("cache.salt", "has {} bytes; the limit is {}", cache.salt().size(),
                    kMaxCacheBytes);
  }
  if (cache.affinity_key().size() > kMaxCacheBytes) {
    return BadField("cache.affinity_key", "has {} bytes; the limit is {}",
                    cache.affinity_key().size(), kMaxCacheBytes);
  }
  return absl::OkStatus();
}

absl::StatusOr<Duration> FirstTokenLimit(const v1::GenerateRequest& request) {
  if (!request.has_first_token_limit()) return Duration::zero();
  const google::protobuf::Duration& limit = request.first_token_limit();
  if (limit.seconds() < 0 || limit.nanos() < 0 || limit.seconds() > 86'400) {
    return BadField("first_token_limit", "is {} s {} ns; it may be up to a day", limit.seconds(),
                    limit.nanos());
  }
  return std::chrono::seconds(limit.seconds()) + std::chrono::nanoseconds(limit.nanos());
}

absl::StatusOr<std::string> KvPolicyOf(const PrepareArgs& args) {
  std::optional<std::string> asked;
  if (!args.request.kv_policy().empty()) {
    auto parsed = ParseAskedKvPolicy(args.request.kv_policy());
    if (!parsed.ok()) return BadField("kv_policy", "{}", Message(parsed.status()));
    asked = *std::move(parsed);
  }
  std::string policy = asked.value_or("");
  if (args.caller.tenant != nullptr) {
    ASSIGN_OR_RETURN(policy, args.caller.tenant->KvPolicyFor(asked));
  }
  const std::vector<std::string> wanted = KvMethodsOf(policy);
  if (wanted.empty() || !args.kv_methods) return policy;
  const auto offered = args.kv_methods();
  if (!offered) return policy;  // No pair is ready: placement returns that error.
  const bool some = std::any_of(wanted.begin(), wanted.end(), [&](const std::string& codec) {
    return std::find(offered->begin(), offered->end(), codec) != offered->end();
  });
  if (some) return policy;
  const std::string supported =
      offered->empty() ? "exact only" : fmt::format("{}", fmt::join(*offered, ", "));
  const bool selects = SelectionOf(policy).has_value();
  if (BlendOf(policy)) {
    return BadField("kv_policy",
                    "is {}; no pair of workers supports it; supported: {}; start prefill and "
                    "decode workers with --kv_blend_deviation=0.25, or use exact",
                    policy, supported);
  }
  if (selects || EvictionOf(policy)) {
    return BadField("kv_policy",
                    "is {}; no pair of workers supports it; supported: {}; start prefill and "
                    "decode workers with --{}={}, or use exact",
                    policy, supported, selects ? "kv_selection" : "kv_eviction", wanted.front());
  }
  return BadField("kv_policy",
                  "is {}; no pair of workers supports it; supported: {}; start prefill and decode "
                  "workers with --lossy_kv={} (cgx also needs `penstock calibrate`), or use exact",
                  policy, supported, policy);
}

// What a blend cannot be combined with, and parts without a blend.
absl::Status CheckBlend(const v1::GenerateRequest& request, const std::string& kv_policy,
                        const std::vector<uint32_t>& parts, const AnswerSpec& answer) {
  const std::string marks = request.blend_separator().empty() ? "blend_parts" : "blend_separator";
  if (!BlendOf(kv_policy)) {
    if (parts.empty()) return absl::OkStatus();
    return BadField(marks, "is set, and kv_policy is {}; it needs blend:PERCENT",
                    KvPolicyName(kv_policy));
  }
  if (parts.empty()) {
    return BadField("kv_policy",
                    "is {}, which needs re-usable parts: set blend_separator for text and chats, "
                    "or blend_parts for tokens",
                    kv_policy);
  }
  if (answer.scores_prompt()) {
    return BadField("kv_policy",
                    "is {}, which cannot be combined with log-probabilities of the prompt",
                    kv_policy);
  }
  if (answer.embedding) {
    return BadField("kv_policy", "is {}, which cannot be combined with embeddings", kv_policy);
  }
  return absl::OkStatus();
}

// The policy with the spans that the request marks.
absl::StatusOr<std::string> KeepSpans(const v1::GenerateRequest& request,
                                      const std::vector<PrefixBreakpoint>& breakpoints,
                                      const std::string& kv_policy,
                                      const std::vector<TokenSpan>& spans) {
  if (spans.empty()) return kv_policy;
  const std::string marks = request.keep_marker().empty() ? "keep_spans" : "keep_marker";
  std::optional<KvEviction> eviction = EvictionOf(kv_policy);
  if (!eviction) {
    return BadField(marks, "is set, and kv_policy is {}; it needs an eviction, METHOD:TOKENS",
                    KvPolicyName(kv_policy));
  }
  // Breakpoints in a chat are found by its tokens without markers.
  const size_t of_chat = breakpoints.size() - (request.cache().has_prompt() ? 1 : 0);
  if (of_chat > 0 && !request.keep_marker().empty()) {
    return BadField(marks, "cannot be combined with cache breakpoints within the chat");
  }
  eviction->spans = spans;
  if (eviction->SpanTokens() <= eviction->SpanTokensMax()) return WithSpans(kv_policy, spans);
  return BadField(marks,
                  "marks {} tokens, and kv_policy {} keeps {}, of which {} must be left for the "
                  "first and the last tokens: at most {} may be marked; mark less, or ask for more "
                  "TOKENS",
                  eviction->SpanTokens(), kv_policy, eviction->keep_tokens,
                  eviction->keep_tokens - eviction->SpanTokensMax(), eviction->SpanTokensMax());
}

// A blended prompt's blocks are in no cache, so there is nothing to keep.
absl::Status CheckUnpinned(const std::vector<PrefixBreakpoint>& breakpoints,
                           const std::string& kv_policy) {
  if (breakpoints.empty() || !BlendOf(kv_policy)) return absl::OkStatus();
  return BadField("kv_policy", "is {}, which cannot be combined with cache breakpoints", kv_policy);
}

bool EvictsAnswer(const std::string& kv_policy) {
  const auto eviction = EvictionOf(kv_policy);
  return eviction && eviction->EvictsAnswer();
}

}  // namespace

PromptIds NamePrompt(const SessionRequest& request, const BlockSpace& space) {
  if (space.block_tokens == 0) return {};
  const auto name = [&](const std::string& provenance) {
    const BlockId root = RootBlockId({.model_fingerprint = space.model_fingerprint,
                                      .kv_format = space.kv_format,
                                      .tenant_salt = request.cache_salt,
                                      .provenance = provenance});
    return HashBlocks(root, request.prompt, static_cast<int32_t>(space.block_tokens));
  };
  PromptIds named{.ids = name("")};
  // Behind the first part the KV is not exact, so no worker has it under these names.
  if (request.blend_parts.size() > 1) {
    const size_t exact = request.blend_parts[1] / space.block_tokens;
    if (named.ids.size() > exact) named.ids.resize(exact);
  }
  if (!KeepsPromptExact(request.kv_policy))
    named.decode_ids = name(ProvenanceOf(request.kv_policy));
  return named;
}

PlacementNeed NeedOfNew(const SessionRequest& request, TimePoint now) {
  const v1::SamplingSpec& sampling = request.answer.sampling;
  // An answer that was asked for with lossy KV would have other tokens without the transfer, and
  // decode workers neither score prompts nor report their hidden states.
  const bool without_prefill_worker = KeepsPromptExact(request.kv_policy) &&
                                      !request.answer.scores_prompt() && !request.answer.embedding;
  const auto prompt_tokens = static_cast<uint32_t>(request.prompt.size());
  const auto eviction = EvictionOf(request.kv_policy);
  const bool has_method = eviction || SelectionOf(request.kv_policy) || BlendOf(request.kv_policy);
  PlacementNeed need{
      .prompt_tokens = prompt_tokens,
      .evicted_tokens = eviction ? eviction->Evicted(prompt_tokens) : 0,
      .held_max = eviction && eviction->EvictsAnswer() ? eviction->limit() : 0,
      .answer_tokens = sampling.max_tokens(),
      .choices = std::max(sampling.choices(), sampling.beams().width()),
      .may_prefill_locally = without_prefill_worker,
      .may_skip_prefill = without_prefill_worker,
      // The router makes the grammar, so a worker must read it as the router's own library does.
      .grammar_fingerprint = sampling.grammar().empty() ? 0 : GrammarFingerprint(),
      .kv_method = has_method ? KvMethodsOf(request.kv_policy).front() : ""};
  if (request.first_token_limit > Duration::zero()) {
    const Duration left = request.first_token_limit - (now - request.received);
    need.ttft_limit_ms = std::max(Milliseconds(left), 1e-3);
  }
  return need;
}

ModelLimits LimitsOf(const ServedModel& model, uint32_t max_model_len) {
  return {.name = model.name,
          .aliases = model.aliases,
          .vocab = model.vocab,
          .max_model_len = max_model_len,
          .eos_token_ids = model.eos_token_ids};
}

absl::StatusOr<PreparedRequest> PrepareRequest(const PrepareArgs& args) {
  RETURN_IF_ERROR(CheckCache(args.request.cache()));
  const ModelLimits limits = LimitsOf(args.model, args.max_model_len);
  ASSIGN_OR_RETURN(AnswerSpec answer, ValidateAnswer(args.request, limits, args.random));
  auto stops = StopMatcher::Create(answer.stop, answer.include_stop_in_output);
  if (!stops.ok()) return Annotate(stops.status(), "stop.stop");
  ASSIGN_OR_RETURN(PromptIdsAndParts encoded,
                   PromptTokens(args.request, args.model, args.max_model_len));
  std::vector<uint32_t>& prompt = encoded.ids;
  RETURN_IF_ERROR(TakeEmbedding(args.request, args.model, answer));
  RETURN_IF_ERROR(ShapeAnswer(args.request, args.model, prompt, answer));
  ASSIGN_OR_RETURN(std::vector<PrefixBreakpoint> breakpoints,
                   FindBreakpoints(args.request, args.model, prompt));
  RETURN_IF_ERROR(FitToContext(prompt.size(), limits, answer));
  std::string echo = answer.echo ? PromptText(args.request, args.model, prompt) : "";
  ASSIGN_OR_RETURN(const Duration limit, FirstTokenLimit(args.request));
  if (std::abs(int64_t{args.request.priority()}) > kMaxPriority) {
    return BadField("priority", "is {}; it may be -{} to {}", args.request.priority(), kMaxPriority,
                    kMaxPriority);
  }
  if (args.caller.tenant != nullptr) {
    RETURN_IF_ERROR(args.caller.tenant->CheckPriority(args.request.priority()));
  }
  ASSIGN_OR_RETURN(std::string kv_policy, KvPolicyOf(args));
  if (EvictionOf(kv_policy) && answer.scores_prompt()) {
    return BadField("kv_policy",
                    "is {}, which cannot be combined with log-probabilities of the prompt",
                    kv_policy);
  }
  if (EvictionOf(kv_policy) && answer.embedding) {
    return BadField("kv_policy", "is {}, which cannot be combined with embeddings", kv_policy);
  }
  if (answer.sampling.has_beams() && EvictsAnswer(kv_policy)) {
    return BadField("kv_policy", "is {}, which cannot be combined with a beam search", kv_policy);
  }
  RETURN_IF_ERROR(CheckUnpinned(breakpoints, kv_policy));
  ASSIGN_OR_RETURN(kv_policy, KeepSpans(args.request, breakpoints, kv_policy, encoded.keep_spans));
  RETURN_IF_ERROR(CheckBlend(args.request, kv_policy, encoded.parts, answer));
  const std::string& id = args.request.client_request_id();
  return PreparedRequest{
      .session = {.request_id = id.empty() ? fmt::format("req-{:016x}", args.random) : id,
                  .trace = args.trace,
                  .prompt = std::move(prompt),
                  .answer = std::move(answer),
                  .continues_text = !args.request.has_chat(),
                  .echo = std::move(echo),
                  .call_ids = args.random,
                  .cache_salt = CacheSalt(args.caller, args.request.cache().salt()),
                  .breakpoints = std::move(breakpoints),
                  .tenant_id = TenantId(args.caller),
                  .kv_policy = std::move(kv_policy),
                  .blend_parts = std::move(encoded.parts),
                  .first_token_limit = limit,
                  .tenant = args.caller.tenant == nullptr ? "" : args.caller.tenant->name(),
                  .priority = args.request.priority(),
                  .received = args.received},
      .stops = *std::move(stops)};
}

}  // namespace penstock
