#include "kvstore/names/kv_policy.h"

#include <algorithm>
#include <charconv>
#include <utility>

namespace penstock {
namespace {

constexpr std::string_view kExact = "exact";
constexpr std::string_view kNearLossless = "near-lossless";

bool IsLossyCodec(std::string_view name) {
  const auto& names = LossyCodecNames();
  return std::find(names.begin(), names.end(), name) != names.end();
}

// The known names among `wanted`, each once, from fine to coarse.
std::vector<std::string> InOrder(const std::vector<std::string>& wanted) {
  std::vector<std::string> found;
  for (const std::string& name : LossyCodecNames()) {
    if (std::find(wanted.begin(), wanted.end(), name) != wanted.end()) found.push_back(name);
  }
  return found;
}

// A number of tokens in decimal digits; nullopt unless it is `min` to `max`.
std::optional<uint32_t> ParseTokens(std::string_view digits, uint32_t min,
                                    uint32_t max = kKeepTokensMax) {
  uint32_t tokens = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), tokens);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.front() == '0') {
    return std::nullopt;
  }
  if (tokens < min || tokens > max) return std::nullopt;
  return tokens;
}

// A method's index in a list of names, and its TOKENS.
struct MethodTokens {
  size_t method = 0;
  uint32_t tokens = 0;
};

// "snapkv:256". Nullopt unless it has that form and TOKENS is in its limits.
std::optional<MethodTokens> ParseMethod(std::string_view text,
                                        const std::vector<std::string>& names) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto name = std::find(names.begin(), names.end(), text.substr(0, colon));
  if (name == names.end()) return std::nullopt;
  const std::optional<uint32_t> tokens = ParseTokens(text.substr(colon + 1), kKeepTokensMin);
  if (!tokens) return std::nullopt;
  return MethodTokens{.method = static_cast<size_t>(name - names.begin()), .tokens = *tokens};
}

// The names of a flag's value, between its commas.
std::vector<std::string_view> NamesOf(std::string_view text) {
  std::vector<std::string_view> names;
  while (true) {
    const size_t comma = text.find(',');
    names.push_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return names;
    text.remove_prefix(comma + 1);
  }
}

// The methods that a flag's value names: "none", "all", or names separated by commas.
absl::StatusOr<std::vector<std::string>> ParseMethods(std::string_view text, std::string_view kind,
                                                      const std::vector<std::string>& known) {
  if (text.empty() || text == "none") return std::vector<std::string>();
  if (text == "all") return known;
  std::vector<std::string> wanted;
  for (const std::string_view name : NamesOf(text)) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return InvalidArgument("KV {} \"{}\" is unknown; allowed are none, all, {}", kind,
                             name.substr(0, 64), fmt::join(known, ", "));
    }
    wanted.emplace_back(name);
  }
  return wanted;
}

}  // namespace

const std::vector<std::string>& KvEvictionNames() {
  static const std::vector<std::string> kNames = {"snapkv",  "h2o",       "tova",  "keydiff",
                                                  "keynorm", "streaming", "random"};
  return kNames;
}

const std::string& KvEvictionName(KvEvictionMethod method) {
  return KvEvictionNames()[static_cast<size_t>(method)];
}

uint32_t SlackTokensMin(KvEvictionMethod method) {
  return method == KvEvictionMethod::kSnapKv ? kObservedTokensMax : kSlackTokensMin;
}

uint32_t SlackTokensMax(KvEvictionMethod method) {
  return method == KvEvictionMethod::kH2o ? kAgainTokensMax : kKeepTokensMax;
}

namespace {

constexpr char kSpansFollow = '@';

// The number at the beginning of `text`, which is cut off.
std::optional<uint32_t> TakeNumber(std::string_view& text) {
  uint32_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) return std::nullopt;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  return number;
}

bool TakeChar(std::string_view& text, char wanted) {
  if (text.empty() || text.front() != wanted) return false;
  text.remove_prefix(1);
  return true;
}

// "10-20,50-60". Nullopt unless spans are not empty, ascend, and are apart.
std::optional<std::vector<TokenSpan>> ParseSpans(std::string_view text) {
  std::vector<TokenSpan> spans;
  do {
    const std::optional<uint32_t> begin = TakeNumber(text);
    if (!begin || !TakeChar(text, '-')) return std::nullopt;
    const std::optional<uint32_t> end = TakeNumber(text);
    if (!end || *end <= *begin || (!spans.empty() && *begin < spans.back().end)) {
      return std::nullopt;
    }
    spans.push_back({.begin = *begin, .end = *end});
  } while (TakeChar(text, ','));
  if (!text.empty() || spans.size() > kKeepSpansMax) return std::nullopt;
  return spans;
}

// An eviction without spans.
std::optional<KvEviction> ParseEviction(std::string_view policy) {
  const size_t plus = policy.find('+');
  const auto parsed = ParseMethod(policy.substr(0, plus), KvEvictionNames());
  if (!parsed) return std::nullopt;
  KvEviction eviction{.method = static_cast<KvEvictionMethod>(parsed->method),
                      .keep_tokens = parsed->tokens};
  if (plus == std::string_view::npos) return eviction;
  const std::optional<uint32_t> slack = ParseTokens(
      policy.substr(plus + 1), SlackTokensMin(eviction.method), SlackTokensMax(eviction.method));
  if (!slack) return std::nullopt;
  eviction.slack_tokens = *slack;
  return eviction;
}

}  // namespace

std::optional<KvEviction> EvictionOf(std::string_view policy) {
  const size_t at = policy.find(kSpansFollow);
  std::optional<KvEviction> eviction = ParseEviction(policy.substr(0, at));
  if (!eviction || at == std::string_view::npos) return eviction;
  std::optional<std::vector<TokenSpan>> spans = ParseSpans(policy.substr(at + 1));
  if (!spans) return std::nullopt;
  eviction->spans = *std::move(spans);
  if (eviction->SpanTokens() > eviction->SpanTokensMax()) return std::nullopt;
  return eviction;
}

std::string WithSpans(const std::string& policy, const std::vector<TokenSpan>& spans) {
  std::string text = policy;
  char separator = kSpansFollow;
  for (const TokenSpan& span : spans) {
    text += fmt::format("{}{}-{}", std::exchange(separator, ','), span.begin, span.end);
  }
  return text;
}

uint32_t KvEviction::SpanTokens() const {
  uint64_t tokens = 0;
  for (const TokenSpan& span : spans) tokens += span.end - span.begin;
  return static_cast<uint32_t>(std::min<uint64_t>(tokens, UINT32_MAX));
}

uint32_t KvEviction::SpanTokensMax() const {
  const uint32_t window = method == KvEvictionMethod::kH2o ? keep_tokens / 2 : kObservedTokensMax;
  return keep_tokens - std::max(window, kObservedTokensMax) - kSinkTokens;
}

uint32_t KvEviction::EvictedAt(uint32_t prompt_tokens, uint32_t tokens) const {
  const uint32_t behind_prompt = Evicted(prompt_tokens);
  const uint32_t held = tokens - behind_prompt;  // without compactions
  if (!EvictsAnswer() || held < limit()) return behind_prompt;
  return behind_prompt + (held - keep_tokens) / slack_tokens * slack_tokens;
}

uint32_t KvEviction::NextCompaction(uint32_t prompt_tokens, uint32_t tokens) const {
  return EvictedAt(prompt_tokens, tokens) + limit();
}

uint32_t KvEviction::HeldMax(uint32_t prompt_tokens, uint32_t tokens) const {
  const uint32_t held = tokens - Evicted(prompt_tokens);
  return EvictsAnswer() ? std::min(held, limit()) : held;
}

const std::vector<std::string>& KvSelectionNames() {
  static const std::vector<std::string> kNames = {"quest"};
  return kNames;
}

std::optional<KvSelection> SelectionOf(std::string_view policy) {
  const auto parsed = ParseMethod(policy, KvSelectionNames());
  if (!parsed) return std::nullopt;
  return KvSelection{.tokens = parsed->tokens};
}

std::optional<KvBlend> BlendOf(std::string_view policy) {
  const size_t colon = policy.find(':');
  if (colon == std::string_view::npos || policy.substr(0, colon) != kBlendName) {
    return std::nullopt;
  }
  const std::optional<uint32_t> percent = ParseTokens(policy.substr(colon + 1), 1);
  if (!percent || *percent > 100) return std::nullopt;
  return KvBlend{.percent = *percent};
}

absl::StatusOr<std::vector<std::string>> ParseKvSelections(std::string_view text) {
  return ParseMethods(text, "selection", KvSelectionNames());
}

bool KeepsPromptExact(std::string_view policy) {
  return policy.empty() || policy == kExact || SelectionOf(policy).has_value();
}

std::vector<std::string> KvMethodsOf(const std::string& policy) {
  if (const auto eviction = EvictionOf(policy)) return {KvEvictionName(eviction->method)};
  if (SelectionOf(policy)) return KvSelectionNames();
  if (BlendOf(policy)) return {std::string(kBlendName)};
  return LossyCodecsOf(policy);
}

bool Permits(const std::string& listed, const std::string& asked) {
  if (listed == asked) return true;
  const auto selects = SelectionOf(listed), selected = SelectionOf(asked);
  if (selects && selected) return selected->tokens >= selects->tokens;
  const auto blends = BlendOf(listed), blended = BlendOf(asked);
  if (blends && blended) return blended->percent >= blends->percent;
  const auto most = EvictionOf(listed), wanted = EvictionOf(asked);
  if (!most || !wanted || most->method != wanted->method) return false;
  if (wanted->keep_tokens < most->keep_tokens) return false;
  if (!wanted->EvictsAnswer()) return true;
  return most->EvictsAnswer() && wanted->slack_tokens >= most->slack_tokens;
}

uint32_t EvictedTokens(std::string_view policy, uint32_t prompt_tokens) {
  const std::optional<KvEviction> eviction = EvictionOf(policy);
  return eviction ? eviction->Evicted(prompt_tokens) : 0;
}

uint32_t EvictedTokens(std::string_view policy, uint32_t prompt_tokens, uint32_t tokens) {
  const std::optional<KvEviction> eviction = EvictionOf(policy);
  return eviction ? eviction->EvictedAt(prompt_tokens, tokens) : 0;
}

absl::StatusOr<std::vector<std::string>> ParseKvEvictions(std::string_view text) {
  return ParseMethods(text, "eviction", KvEvictionNames());
}

const std::vector<std::string>& LossyCodecNames() {
  static const std::vector<std::string> kNames = {"i8",   "f8",   "f8e5m2", "k8v4", "i4r", "cgx1",
                                                  "cgx2", "cgx3", "cgx4",   "cgx5", "kv2"};
  return kNames;
}

absl::StatusOr<std::string> ParseKvPolicy(std::string_view text) {
  if (text.empty() || text == kExact) return std::string();
  if (text == kNearLossless || IsLossyCodec(text) || EvictionOf(text) || SelectionOf(text) ||
      BlendOf(text)) {
    return std::string(text);
  }
  if (ParseMethod(text.substr(0, text.find('+')), KvEvictionNames())) {
    return InvalidArgument(
        "KV policy \"{}\" evicts while decoding; that needs METHOD:TOKENS+SLACK with METHOD {} and "
        "SLACK {} to {}, {} or more for snapkv, at most {} for h2o; without +SLACK the prompt "
        "alone is evicted",
        text.substr(0, 64), fmt::join(KvEvictionNames(), ", "), kSlackTokensMin, kKeepTokensMax,
        SlackTokensMin(KvEvictionMethod::kSnapKv), SlackTokensMax(KvEvictionMethod::kH2o));
  }
  return InvalidArgument(
      "KV policy \"{}\" is unknown; allowed are {}, {}, {}, METHOD:TOKENS with METHOD {}, {} "
      "and TOKENS {} to {}, and {}:PERCENT with PERCENT 1 to 100",
      text.substr(0, 64), kExact, kNearLossless, fmt::join(LossyCodecNames(), ", "),
      fmt::join(KvEvictionNames(), ", "), fmt::join(KvSelectionNames(), ", "), kKeepTokensMin,
      kKeepTokensMax, kBlendName);
}

absl::StatusOr<std::string> ParseAskedKvPolicy(std::string_view text) {
  if (text.find(kSpansFollow) != std::string_view::npos) {
    return InvalidArgument(
        "KV policy \"{}\" has spans behind its @; mark what an eviction must keep with keep_marker "
        "or keep_spans",
        text.substr(0, 64));
  }
  return ParseKvPolicy(text);
}

std::string KvPolicyName(const std::string& policy) {
  return policy.empty() ? std::string(kExact) : policy;
}

std::vector<std::string> LossyCodecsOf(const std::string& policy) {
  if (policy.empty() || EvictionOf(policy) || SelectionOf(policy) || BlendOf(policy)) return {};
  if (policy == kNearLossless) return {"i8", "f8"};
  return {policy};
}

absl::StatusOr<std::vector<std::string>> ParseLossyCodecs(std::string_view text) {
  if (text.empty() || text == "none") return std::vector<std::string>();
  if (text == "all") return LossyCodecNames();
  std::vector<std::string> wanted;
  for (const std::string_view name : NamesOf(text)) {
    if (name == kNearLossless) {
      for (std::string& codec : LossyCodecsOf(std::string(name)))
        wanted.push_back(std::move(codec));
    } else if (IsLossyCodec(name)) {
      wanted.emplace_back(name);
    } else {
      return InvalidArgument("lossy codec \"{}\" is unknown; allowed are none, all, {}, {}",
                             name.substr(0, 64), kNearLossless, fmt::join(LossyCodecNames(), ", "));
    }
  }
  return InOrder(wanted);
}

std::string ProvenanceOf(const std::string& policy) {
  return KeepsPromptExact(policy) ? std::string() : "wire " + policy;
}

}  // namespace penstock
