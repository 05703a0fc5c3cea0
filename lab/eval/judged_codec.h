#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/codec/codec.h"
#include "kvstore/names/kv_policy.h"

namespace penstock {

// A codec, an eviction, a selection or a page format to be judged; none: plain 4-bit groups, one to
// a (token, head).
struct JudgedCodec {
  std::string name;
  std::optional<KvCodecSpec> spec = {};
  std::optional<KvEviction> eviction = {};
  std::optional<KvSelection> selection = {};
  std::optional<KvDtype> pages = {};  // of the prompt and of what follows

  // True if it is done behind a prompt whose tokens are computed with exact KV.
  bool BehindPrompt() const { return eviction || selection; }
  // True if the answer's tokens are evicted too.
  bool EvictsAnswer() const { return eviction && eviction->slack_tokens > 0; }
};

// INVALID_ARGUMENT lists the known names.
absl::StatusOr<JudgedCodec> ParseJudgedCodec(const std::string& name);

// All codecs, and "int4".
std::vector<JudgedCodec> AllJudgedCodecs();

}  // namespace penstock
