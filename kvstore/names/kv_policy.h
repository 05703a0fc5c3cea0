#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// A KV policy says which loss of precision a request accepts on the way from a prefill to a decode
// worker: "" (exact), "near-lossless", or the name of one lossy codec. The exact codecs are allowed
// under every policy. The names equal those of KvCodecName (kvstore/codec/codec.h), but this header
// does not depend on the codecs, because routers use it too.

// The names of all lossy codecs, from fine to coarse.
const std::vector<std::string>& LossyCodecNames();

// The policy that `text` names; "" and "exact" both give "". INVALID_ARGUMENT lists the known
// names.
absl::StatusOr<std::string> ParseKvPolicy(std::string_view text);
// The policy's name for people: "exact" for "".
std::string KvPolicyName(const std::string& policy);
// The lossy codecs that a policy allows, from fine to coarse.
std::vector<std::string> LossyCodecsOf(const std::string& policy);

// The lossy codecs that a worker's flag allows: "none", "near-lossless", "all", or codec names
// separated by commas. The result is ordered from fine to coarse. INVALID_ARGUMENT lists the known
// names.
absl::StatusOr<std::vector<std::string>> ParseLossyCodecs(std::string_view text);

// The BlockNamespace::provenance of blocks that were received under `policy`, and of blocks
// computed after them. Empty for the exact policy, so only exact blocks have exact ids.
std::string ProvenanceOf(const std::string& policy);

}  // namespace penstock
