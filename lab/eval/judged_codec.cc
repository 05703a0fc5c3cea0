#include "lab/eval/judged_codec.h"

#include <algorithm>

namespace penstock {
namespace {

constexpr std::string_view kPages = "pages:", kOnce = "once:";
constexpr std::string_view kInt4 = "int4";
constexpr std::string_view kOracle = "oracle:";
constexpr std::string_view kNaive = "blend:naive", kMoved = "blend:moved";

std::vector<std::string> CodecNames() {
  std::vector<std::string> names;
  for (const KvCodecSpec& spec : AllKvCodecs()) names.push_back(KvCodecName(spec));
  names.emplace_back(kInt4);
  return names;
}

// "pages:FORMAT" with a format of --kv_format, or "pages:FORMAT,POLICY" with a policy that works on
// any pages.
absl::StatusOr<JudgedCodec> ParsePages(const std::string& name) {
  const size_t comma = std::min(name.find(','), name.size());
  const std::optional<KvPageFormat> pages =
      KvPageFormatOf(std::string_view(name).substr(kPages.size(), comma - kPages.size()));
  if (!pages) return InvalidArgument("{} names no format of pages (--kv_format)", name);
  if (comma == name.size()) return JudgedCodec{.name = name, .pages = pages};
  if (pages->span > 0) {
    return InvalidArgument("{} has a span and a policy; policies need pages without a span", name);
  }
  ASSIGN_OR_RETURN(JudgedCodec codec, ParseJudgedCodec(name.substr(comma + 1)));
  if (!codec.eviction && !codec.selection && !codec.blend) {
    return InvalidArgument("{} must have an eviction, a selection or a blend behind its comma",
                           name);
  }
  codec.name = name;
  codec.pages = pages;
  return codec;
}

// "once:FORMAT". What a span has in bf16 is not a codec's: the protected tokens are.
absl::StatusOr<JudgedCodec> ParseOnce(const std::string& name) {
  const std::optional<KvPageFormat> format =
      KvPageFormatOf(std::string_view(name).substr(kOnce.size()));
  if (!format || format->dtype == KvDtype::kBf16) {
    return InvalidArgument("{} names no format of coded pages (--kv_format)", name);
  }
  return JudgedCodec{.name = name, .once = format};
}

// "oracle:TOKENS", with the limits of a selection.
std::optional<KvOracle> OracleOf(std::string_view name) {
  if (!name.starts_with(kOracle)) return std::nullopt;
  const auto limits = SelectionOf("quest:" + std::string(name.substr(kOracle.size())));
  if (!limits) return std::nullopt;
  return KvOracle{.tokens = limits->tokens};
}

std::optional<JudgedBlend> JudgedBlendOf(std::string_view name) {
  if (name == kNaive) return JudgedBlend{.moves_keys = false};
  if (name == kMoved) return JudgedBlend{};
  const std::optional<KvBlend> blend = BlendOf(name);
  if (!blend) return std::nullopt;
  return JudgedBlend{.blend = blend};
}

}  // namespace

int64_t ResidentBytes(const JudgedCodec& codec, KvLayout layout, uint32_t prompt_tokens,
                      uint32_t tokens) {
  layout = layout.In(codec.pages.value_or(layout.format()));
  const uint32_t held = codec.eviction ? codec.eviction->HeldMax(prompt_tokens, tokens) : tokens;
  const int64_t blocks = layout.BlocksFor(held);
  const int64_t rows = layout.span > 0 ? layout.RowsAtOnce(held, 1) : 0;
  const int64_t pages = layout.span > 0 ? blocks * static_cast<int64_t>(layout.FullStride()) +
                                              rows * static_cast<int64_t>(layout.RowStride())
                                        : blocks * static_cast<int64_t>(layout.BlockStride());
  if (!codec.selection) return pages;
  return pages + blocks * layout.layers * layout.kv_heads * 2 * layout.head_dim *
                     static_cast<int64_t>(sizeof(Bf16));
}

absl::StatusOr<JudgedCodec> ParseJudgedCodec(const std::string& name) {
  if (name == kInt4) return JudgedCodec{.name = name};
  if (name.starts_with(kPages)) return ParsePages(name);
  if (name.starts_with(kOnce)) return ParseOnce(name);
  if (name.find(':') != std::string::npos) {
    const std::optional<JudgedBlend> blend = JudgedBlendOf(name);
    if (blend) return JudgedCodec{.name = name, .blend = blend};
    const std::optional<KvOracle> oracle = OracleOf(name);
    if (oracle) return JudgedCodec{.name = name, .oracle = oracle};
    RETURN_IF_ERROR(ParseAskedKvPolicy(name).status());
    return JudgedCodec{.name = name, .eviction = EvictionOf(name), .selection = SelectionOf(name)};
  }
  const absl::StatusOr<KvCodecSpec> spec = ParseKvCodec(name);
  if (spec.ok()) return JudgedCodec{.name = name, .spec = *spec};
  return InvalidArgument(
      "\"{}\" cannot be evaluated; known are the codecs {}, pages:FORMAT (,POLICY behind FORMAT "
      "works in such pages), once:FORMAT, and METHOD:TOKENS with "
      "METHOD {}, {} (+SLACK behind TOKENS evicts the answer too), oracle:TOKENS, blend:PERCENT, "
      "{} and {}",
      name.substr(0, 64), fmt::join(CodecNames(), ", "), fmt::join(KvEvictionNames(), ", "),
      fmt::join(KvSelectionNames(), ", "), kMoved, kNaive);
}

std::vector<JudgedCodec> AllJudgedCodecs() {
  std::vector<JudgedCodec> codecs;
  for (const KvCodecSpec& spec : AllKvCodecs()) {
    codecs.push_back({.name = KvCodecName(spec), .spec = spec});
  }
  codecs.push_back({.name = std::string(kInt4)});
  return codecs;
}

}  // namespace penstock
