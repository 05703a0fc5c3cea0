#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// A KV policy says how the KV of a request may differ from exact KV on the way from a prefill to a
// decode worker, and in the decode worker: "" (exact), "near-lossless", the name of one lossy
// codec, an eviction, a selection, or a blend. The exact codecs are allowed under every policy. The
// codecs' names equal those of KvCodecName (kvstore/codec/codec.h), but this header does not depend
// on the codecs, because routers use it too.

// The names of all lossy codecs, from fine to coarse.
const std::vector<std::string>& LossyCodecNames();

// The policy that `text` names; "" and "exact" both give "". INVALID_ARGUMENT lists the known
// names.
absl::StatusOr<std::string> ParseKvPolicy(std::string_view text);
// The same for people, who name policies without spans.
absl::StatusOr<std::string> ParseAskedKvPolicy(std::string_view text);
// The policy's name for people: "exact" for "".
std::string KvPolicyName(const std::string& policy);
// The lossy codecs that a policy allows, from fine to coarse; none for a method.
std::vector<std::string> LossyCodecsOf(const std::string& policy);

// An eviction, "METHOD:TOKENS": at the end of prefill the KV of all but TOKENS tokens of the prompt
// is dropped, so that the rest alone is sent, held and read. "METHOD:TOKENS+SLACK" evicts while
// decoding too: when a sequence holds the KV of TOKENS + SLACK tokens, it is compacted to TOKENS
// before its next step.
enum class KvEvictionMethod : uint8_t {
  kSnapKv,
  kH2o,
  kTova,
  kKeyDiff,
  kKeyNorm,
  kStreaming,
  kRandom
};

// The tokens [begin, end) of a prompt.
struct TokenSpan {
  uint32_t begin = 0;
  uint32_t end = 0;
  bool operator==(const TokenSpan&) const = default;
};

// Behind an eviction's text, "@BEGIN-END,BEGIN-END" marks spans of the prompt that it always keeps.
// The router writes it for a request that marks them; requests and keys files name policies without
// spans. As a part of the policy, spans go wherever it goes, and into ProvenanceOf.
struct KvEviction {
  KvEvictionMethod method = KvEvictionMethod::kSnapKv;
  uint32_t keep_tokens = 0;   // kKeepTokensMin to kKeepTokensMax
  uint32_t slack_tokens = 0;  // SlackTokensMin to SlackTokensMax; 0: the answer is not evicted

  // Spans that are always kept, ascending and apart: at most kKeepSpansMax, with at most
  // SpanTokensMax() tokens.
  std::vector<TokenSpan> spans = {};

  uint32_t SpanTokens() const;     // in all spans
  uint32_t SpanTokensMax() const;  // there is room left for the first and the last tokens
  // True if the answer is evicted, too, while it is decoded.
  bool EvictsAnswer() const { return slack_tokens > 0; }
  // The number of a prompt's tokens whose KV is dropped at the end of prefill.
  uint32_t Evicted(uint32_t prompt_tokens) const {
    return prompt_tokens > keep_tokens ? prompt_tokens - keep_tokens : 0;
  }
  // The schedule, which depends on the sequence's length alone, so that every worker knows it:
  // how many of the first `tokens` tokens, prompt and answer, have lost their KV when the next
  // token is computed.
  uint32_t EvictedAt(uint32_t prompt_tokens, uint32_t tokens) const;
  // The number of tokens, more than `tokens`, behind which the sequence is compacted next. Only
  // with slack.
  uint32_t NextCompaction(uint32_t prompt_tokens, uint32_t tokens) const;
  // The most tokens whose KV a sequence holds on its way from the end of its prompt to `tokens`
  // tokens.
  uint32_t HeldMax(uint32_t prompt_tokens, uint32_t tokens) const;
  uint32_t limit() const { return keep_tokens + slack_tokens; }  // of tokens held, with slack
  bool operator==(const KvEviction&) const = default;
};

// The window of queries that SnapKV observes is always kept, and so is room for others.
inline constexpr uint32_t kKeepTokensMin = 64;
inline constexpr uint32_t kKeepTokensMax = 1u << 20;
inline constexpr uint32_t kSlackTokensMin = 16;  // a compaction costs more than a step
// The last tokens of a prompt, or before a compaction, that an eviction may have computed in one
// step of a prefill worker.
inline constexpr uint32_t kObservedTokensMax = 32;
// The most tokens that one step of a decode worker computes again, because evictions observe them.
inline constexpr uint32_t kAgainTokensMax = 4 * kObservedTokensMax;

// The first tokens, which every token attends to whatever they say (StreamingLLM).
inline constexpr uint32_t kSinkTokens = 4;
inline constexpr uint32_t kKeepSpansMax = 64;  // of a prompt

// The names of all methods, in the order of KvEvictionMethod: "snapkv", "h2o", "tova",
// "keydiff", "keynorm", "streaming", "random".
const std::vector<std::string>& KvEvictionNames();
const std::string& KvEvictionName(KvEvictionMethod method);
// The least slack: kSlackTokensMin, or the tokens that the method observes at once.
uint32_t SlackTokensMin(KvEvictionMethod method);
// The most slack: kKeepTokensMax; for H2O kAgainTokensMax, because it observes all tokens since the
// last compaction, and the step before the next one computes them again.
uint32_t SlackTokensMax(KvEvictionMethod method);
// The eviction of a policy that ParseKvPolicy has returned; nullopt: it evicts nothing.
std::optional<KvEviction> EvictionOf(std::string_view policy);
// The policy of an eviction without spans, with spans that keep the limits of KvEviction.
std::string WithSpans(const std::string& policy, const std::vector<TokenSpan>& spans);
// A selection, "quest:TOKENS": all KV of the prompt is exact and is sent and held, but each token
// of the answer attends to about TOKENS of the tokens before it, which it selects by itself
// (PageSelection in model/forward/model_runner.h). TOKENS has the limits of an eviction.
struct KvSelection {
  uint32_t tokens = 0;
  bool operator==(const KvSelection&) const = default;
};

// The names of all methods of selection: "quest".
const std::vector<std::string>& KvSelectionNames();
// The selection of a policy that ParseKvPolicy has returned; nullopt: it selects nothing.
std::optional<KvSelection> SelectionOf(std::string_view policy);
// The selections that a worker's flag allows: "none", "all", or names separated by commas.
// INVALID_ARGUMENT lists the known names.
absl::StatusOr<std::vector<std::string>> ParseKvSelections(std::string_view text);
// A blend, "blend:PERCENT": parts of the prompt that the request names are computed once, each
// behind the tokens before the first of them, and their KV is re-used in any order. PERCENT of
// their tokens are computed again in their place. 100 is exact.
struct KvBlend {
  uint32_t percent = 100;  // 1 to 100

  // Of the tokens whose KV is re-used, the number to compute again.
  uint32_t Recomputed(uint32_t tokens) const { return (tokens * percent + 99) / 100; }
  bool operator==(const KvBlend&) const = default;
};

// The most parts of a prompt, and the most tokens of one that are blended together.
inline constexpr uint32_t kBlendPartsMax = 64;
inline constexpr uint32_t kBlendedTokensMax = 512;
// The name of the only method.
inline constexpr std::string_view kBlendName = "blend";
// The blend of a policy that ParseKvPolicy has returned; nullopt: it blends nothing.
std::optional<KvBlend> BlendOf(std::string_view policy);

// True if the prompt's KV is exact under the policy, wherever it is computed.
bool KeepsPromptExact(std::string_view policy);

// The lossy codecs, or the method of eviction, selection or blend, of which a request under the
// policy needs one.
std::vector<std::string> KvMethodsOf(const std::string& policy);
// True if a tenant that may use `listed` may use `asked`: the same policy, or the same eviction or
// selection that keeps more, or a blend that computes more.
bool Permits(const std::string& listed, const std::string& asked);
// KvEviction::Evicted and KvEviction::EvictedAt of a policy; 0 if it evicts nothing.
uint32_t EvictedTokens(std::string_view policy, uint32_t prompt_tokens);
uint32_t EvictedTokens(std::string_view policy, uint32_t prompt_tokens, uint32_t tokens);
// The evictions that a worker's flag allows: "none", "all", or names separated by commas.
// INVALID_ARGUMENT lists the known names.
absl::StatusOr<std::vector<std::string>> ParseKvEvictions(std::string_view text);

// The lossy codecs that a worker's flag allows: "none", "near-lossless", "all", or codec names
// separated by commas. The result is ordered from fine to coarse. INVALID_ARGUMENT lists the known
// names.
absl::StatusOr<std::vector<std::string>> ParseLossyCodecs(std::string_view text);

// The BlockNamespace::provenance of blocks that were received under `policy`, and of blocks
// computed after them. (What an eviction leaves is in no cache, nor is what tokens that select
// compute, nor what is blended.) Empty for policies that keep the prompt exact, so only exact
// blocks have exact ids.
std::string ProvenanceOf(const std::string& policy);

}  // namespace penstock
