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

// Documents of a prompt that are computed each alone and re-used. The prompt's first tokens are
// exact, and everything behind them is in documents.
struct JudgedBlend {
  std::optional<KvBlend> blend = {};  // none: nothing is computed again, which no request can ask
  bool moves_keys = true;             // false: keys keep the positions that they were computed at
  int32_t document_tokens = 256;
};

// The tokens that a document is computed behind, and those before the first document in the prompt:
// a part of one token follows the former there, because the first part is always exact.
inline constexpr uint32_t kLeadingTokens = 16;
inline constexpr uint32_t kExactTokens = kLeadingTokens + 1;

// How near an eviction of a prompt could come that knew every later query: each token attends to
// the answer so far and, in each layer and KV head, to the `tokens` of the prompt to which it gives
// the most attention. All KV is exact. (A selection has its first two layers whole, and may be
// nearer.)
struct KvOracle {
  uint32_t tokens = 0;
};

// A codec, an eviction, a selection, a blend, an oracle or a page format to be judged; none: plain
// 4-bit groups, one to a (token, head). With a page format, an eviction, a selection or a blend
// works in such pages. `once` is a page format as if it were a codec.
struct JudgedCodec {
  std::string name;
  std::optional<KvCodecSpec> spec = {};
  std::optional<KvEviction> eviction = {};
  std::optional<KvSelection> selection = {};
  std::optional<KvPageFormat> pages = {};  // of the prompt and of what follows
  std::optional<KvPageFormat> once = {};
  std::optional<JudgedBlend> blend = {};
  std::optional<KvOracle> oracle = {};

  // True if it is done behind a prompt whose tokens are computed with the KV of all.
  bool BehindPrompt() const { return eviction || selection || oracle; }
  // True if the answer's tokens are evicted too.
  bool EvictsAnswer() const { return eviction && eviction->EvictsAnswer(); }
};

// The bytes of a decode worker that one sequence holds at its peak, from the end of a prompt of
// `prompt_tokens` to `tokens` tokens: whole blocks of pages, and beside them the bounds of keys
// that a selection needs.
int64_t ResidentBytes(const JudgedCodec& codec, KvLayout layout, uint32_t prompt_tokens,
                      uint32_t tokens);

// INVALID_ARGUMENT lists the known names.
absl::StatusOr<JudgedCodec> ParseJudgedCodec(const std::string& name);

// All codecs, and "int4".
std::vector<JudgedCodec> AllJudgedCodecs();

}  // namespace penstock
