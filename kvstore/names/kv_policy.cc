#include "kvstore/names/kv_policy.h"

#include <algorithm>
#include <charconv>

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

// "snapkv:256". Nullopt unless it has that form and TOKENS is in its limits.
std::optional<KvEviction> ParseEviction(std::string_view text) {
  const size_t colon = text.find(':');
  if (colon == std::string_view::npos) return std::nullopt;
  const auto& names = KvEvictionNames();
  const auto name = std::find(names.begin(), names.end(), text.substr(0, colon));
  if (name == names.end()) return std::nullopt;
  const std::string_view digits = text.substr(colon + 1);
  uint32_t tokens = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), tokens);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.front() == '0') {
    return std::nullopt;
  }
  if (tokens < kKeepTokensMin || tokens > kKeepTokensMax) return std::nullopt;
  return KvEviction{.method = static_cast<KvEvictionMethod>(name - names.begin()),
                    .keep_tokens = tokens};
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

}  // namespace

const std::vector<std::string>& KvEvictionNames() {
  static const std::vector<std::string> kNames = {"snapkv",  "h2o",       "tova",  "keydiff",
                                                  "keynorm", "streaming", "random"};
  return kNames;
}

const std::string& KvEvictionName(KvEvictionMethod method) {
  return KvEvictionNames()[static_cast<size_t>(method)];
}

std::optional<KvEviction> EvictionOf(std::string_view policy) { return ParseEviction(policy); }

std::vector<std::string> KvMethodsOf(const std::string& policy) {
  if (const auto eviction = EvictionOf(policy)) return {KvEvictionName(eviction->method)};
  return LossyCodecsOf(policy);
}

bool Permits(const std::string& listed, const std::string& asked) {
  if (listed == asked) return true;
  const auto most = EvictionOf(listed), wanted = EvictionOf(asked);
  return most && wanted && most->method == wanted->method &&
         wanted->keep_tokens >= most->keep_tokens;
}

uint32_t EvictedTokens(std::string_view policy, uint32_t prompt_tokens) {
  const std::optional<KvEviction> eviction = EvictionOf(policy);
  return eviction ? eviction->Evicted(prompt_tokens) : 0;
}

absl::StatusOr<std::vector<std::string>> ParseKvEvictions(std::string_view text) {
  if (text.empty() || text == "none") return std::vector<std::string>();
  const auto& known = KvEvictionNames();
  if (text == "all") return known;
  std::vector<std::string> wanted;
  for (const std::string_view name : NamesOf(text)) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return InvalidArgument("KV eviction \"{}\" is unknown; allowed are none, all, {}",
                             name.substr(0, 64), fmt::join(known, ", "));
    }
    wanted.emplace_back(name);
  }
  return wanted;
}

const std::vector<std::string>& LossyCodecNames() {
  static const std::vector<std::string> kNames = {"i8",   "f8",   "f8e5m2", "k8v4", "i4r", "cgx1",
                                                  "cgx2", "cgx3", "cgx4",   "cgx5", "kv2"};
  return kNames;
}

absl::StatusOr<std::string> ParseKvPolicy(std::string_view text) {
  if (text.empty() || text == kExact) return std::string();
  if (text == kNearLossless || IsLossyCodec(text) || ParseEviction(text)) return std::string(text);
  return InvalidArgument(
      "KV policy \"{}\" is unknown; allowed are {}, {}, {}, and METHOD:TOKENS with METHOD {} and "
      "TOKENS {} to {}",
      text.substr(0, 64), kExact, kNearLossless, fmt::join(LossyCodecNames(), ", "),
      fmt::join(KvEvictionNames(), ", "), kKeepTokensMin, kKeepTokensMax);
}

std::string KvPolicyName(const std::string& policy) {
  return policy.empty() ? std::string(kExact) : policy;
}

std::vector<std::string> LossyCodecsOf(const std::string& policy) {
  if (policy.empty() || EvictionOf(policy)) return {};
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
  return policy.empty() || policy == kExact ? std::string() : "wire " + policy;
}

}  // namespace penstock
