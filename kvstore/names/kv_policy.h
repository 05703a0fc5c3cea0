#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// What may be done to KV between a prefill and a decode worker. A policy is "" (exact),
// "near-lossless" or the name of one lossy codec; the exact codecs are always allowed. Names are
// those of KvCodecName (kvstore/codec/codec.h), without what codecs depend on: routers know them,
// too.

// Of every lossy codec, from fine to coarse.
const std::vector<std::string>& LossyCodecNames();

// The policy that `text` names: "" and "exact" are "". INVALID_ARGUMENT lists what there is.
absl::StatusOr<std::string> ParseKvPolicy(std::string_view text);
// "exact" for "".
std::string KvPolicyName(const std::string& policy);
// The lossy codecs that a policy allows, from fine to coarse.
std::vector<std::string> LossyCodecsOf(const std::string& policy);

// What a worker allows: "none", "near-lossless", "all", or names of codecs separated by commas.
// INVALID_ARGUMENT lists them. From fine to coarse.
absl::StatusOr<std::vector<std::string>> ParseLossyCodecs(std::string_view text);

// What BlockNamespace::provenance says of blocks that came under this policy, and of what was
// computed behind them. Empty for exact: nothing else is ever found under an exact block's id.
std::string ProvenanceOf(const std::string& policy);

}  // namespace penstock
