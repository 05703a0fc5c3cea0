#include "kvstore/names/kv_policy.h"

#include <algorithm>

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

}  // namespace

const std::vector<std::string>& LossyCodecNames() {
  static const std::vector<std::string> kNames = {"i8",   "f8",   "f8e5m2", "k8v4", "i4r", "cgx1",
                                                  "cgx2", "cgx3", "cgx4",   "cgx5", "kv2"};
  return kNames;
}

absl::StatusOr<std::string> ParseKvPolicy(std::string_view text) {
  if (text.empty() || text == kExact) return std::string();
  if (text == kNearLossless || IsLossyCodec(text)) return std::string(text);
  return InvalidArgument("KV policy \"{}\" is unknown; allowed are {}, {}, {}", text.substr(0, 64),
                         kExact, kNearLossless, fmt::join(LossyCodecNames(), ", "));
}

std::string KvPolicyName(const std::string& policy) {
  return policy.empty() ? std::string(kExact) : policy;
}

std::vector<std::string> LossyCodecsOf(const std::string& policy) {
  if (policy.empty()) return {};
  if (policy == kNearLossless) return {"i8", "f8"};
  return {policy};
}

absl::StatusOr<std::vector<std::string>> ParseLossyCodecs(std::string_view text) {
  if (text.empty() || text == "none") return std::vector<std::string>();
  if (text == "all") return LossyCodecNames();
  std::vector<std::string> wanted;
  while (true) {
    const size_t comma = text.find(',');
    const std::string_view name = text.substr(0, comma);
    if (name == kNearLossless) {
      for (std::string& codec : LossyCodecsOf(std::string(name)))
        wanted.push_back(std::move(codec));
    } else if (IsLossyCodec(name)) {
      wanted.emplace_back(name);
    } else {
      return InvalidArgument("lossy codec \"{}\" is unknown; allowed are none, all, {}, {}",
                             name.substr(0, 64), kNearLossless, fmt::join(LossyCodecNames(), ", "));
    }
    if (comma == std::string_view::npos) return InOrder(wanted);
    text.remove_prefix(comma + 1);
  }
}

std::string ProvenanceOf(const std::string& policy) {
  return policy.empty() || policy == kExact ? std::string() : "wire " + policy;
}

}  // namespace penstock
