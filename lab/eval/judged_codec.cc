#include "lab/eval/judged_codec.h"

namespace penstock {
namespace {

constexpr std::string_view kPages = "pages:";
constexpr std::string_view kInt4 = "int4";
constexpr std::string_view kNaive = "blend:naive", kMoved = "blend:moved";

std::vector<std::string> CodecNames() {
  std::vector<std::string> names;
  for (const KvCodecSpec& spec : AllKvCodecs()) names.push_back(KvCodecName(spec));
  names.emplace_back(kInt4);
  return names;
}

absl::StatusOr<JudgedCodec> ParsePages(const std::string& name) {
  const std::optional<KvDtype> pages = KvDtypeOf(std::string_view(name).substr(kPages.size()));
  if (!pages) return InvalidArgument("{} names no format of pages (--kv_format)", name);
  return JudgedCodec{.name = name, .pages = pages};
}

std::optional<JudgedBlend> JudgedBlendOf(std::string_view name) {
  if (name == kNaive) return JudgedBlend{.moves_keys = false};
  if (name == kMoved) return JudgedBlend{};
  const std::optional<KvBlend> blend = BlendOf(name);
  if (!blend) return std::nullopt;
  return JudgedBlend{.blend = blend};
}

}  // namespace

absl::StatusOr<JudgedCodec> ParseJudgedCodec(const std::string& name) {
  if (name == kInt4) return JudgedCodec{.name = name};
  if (name.starts_with(kPages)) return ParsePages(name);
  if (name.find(':') != std::string::npos) {
    const std::optional<JudgedBlend> blend = JudgedBlendOf(name);
    if (blend) return JudgedCodec{.name = name, .blend = blend};
    RETURN_IF_ERROR(ParseKvPolicy(name).status());
    return JudgedCodec{.name = name, .eviction = EvictionOf(name), .selection = SelectionOf(name)};
  }
  const absl::StatusOr<KvCodecSpec> spec = ParseKvCodec(name);
  if (spec.ok()) return JudgedCodec{.name = name, .spec = *spec};
  return InvalidArgument(
      "\"{}\" cannot be evaluated; known are the codecs {}, pages:FORMAT, and METHOD:TOKENS with "
      "METHOD {}, {} (+SLACK behind TOKENS evicts the answer too), blend:PERCENT, {} and {}",
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
