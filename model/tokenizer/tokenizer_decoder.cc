#include "model/tokenizer/tokenizer_decoder.h"

#include "model/tokenizer/bpe_vocabulary.h"
#include "model/tokenizer/tokenizer_json.h"
#include "model/tokenizer/tokenizer_normalizer.h"

namespace penstock {
namespace {

constexpr int kDecoderDepthMax = 8;
constexpr uint32_t kMaxStrip = 16;

}  // namespace

absl::StatusOr<TokenDecoder> TokenDecoder::Parse(const JsonField& field) {
  TokenDecoder decoder;
  if (!field.present()) return field.Unsupported("ByteLevel, Metaspace, Sequence");
  RETURN_IF_ERROR(decoder.AddSteps(field, 0));
  return decoder;
}

absl::Status TokenDecoder::AddSteps(const JsonField& field, int depth) {
  if (depth > kDecoderDepthMax) return InvalidArgument("{} is nested too deeply", field.path());
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  if (type == "Sequence") {
    const JsonField parts = field["decoders"];
    RETURN_IF_ERROR(parts.ExpectArray());
    for (size_t i = 0; i < parts.size(); ++i) RETURN_IF_ERROR(AddSteps(parts[i], depth + 1));
    return absl::OkStatus();
  }
  if (type == "Strip") return AddStrip(field);
  // A step after Fuse sees the whole text, a step before it single tokens.
  if (fused_) return field["type"].Unsupported("Strip after Fuse");
  if (type == "Replace") return AddReplace(field);
  if (type == "Metaspace") return AddMetaspace(field);
  if (type == "ByteLevel") {
    byte_level_ = true;
  } else if (type == "ByteFallback") {
    byte_fallback_ = true;
  } else if (type == "Fuse") {
    fused_ = true;
  } else {
    return field["type"].Unsupported(
        "ByteFallback, ByteLevel, Fuse, Metaspace, Replace, Sequence, Strip");
  }
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddReplace(const JsonField& field) {
  ASSIGN_OR_RETURN(std::string from, field["pattern"]["String"].String());
  ASSIGN_OR_RETURN(std::string to, field["content"].String());
  if (byte_fallback_ || byte_level_) {
    return InvalidArgument("{} is a Replace after bytes were decoded, which is not supported",
                           field.path());
  }
  replacements_.emplace_back(std::move(from), std::move(to));
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddStrip(const JsonField& field) {
  if (!fused_) return field["type"].Unsupported("Strip after Fuse");
  ASSIGN_OR_RETURN(const std::string content, field["content"].String());
  if (content != " ") return field["content"].Unsupported("\" \"");
  ASSIGN_OR_RETURN(const uint32_t stop, field["stop"].Index(kMaxStrip));
  if (stop != 0) return field["stop"].Unsupported("0");
  ASSIGN_OR_RETURN(strip_left_, field["start"].Index(kMaxStrip));
  return absl::OkStatus();
}

absl::Status TokenDecoder::AddMetaspace(const JsonField& field) {
  ASSIGN_OR_RETURN(std::string replacement, field["replacement"].String());
  ASSIGN_OR_RETURN(const bool prefix, field["add_prefix_space"].BoolOr(true));
  ASSIGN_OR_RETURN(const std::string scheme,
                   field["prepend_scheme"].StringOr(prefix ? "always" : "never"));
  if (scheme != "never") metaspace_prefix_ = replacement;
  replacements_.emplace_back(std::move(replacement), " ");
  return absl::OkStatus();
}

std::optional<std::string> TokenDecoder::BytesOfFirst(std::string_view spelling) const {
  if (metaspace_prefix_.empty()) return std::nullopt;
  return BytesOf(ReplaceAll(spelling, metaspace_prefix_, ""));
}

std::string TokenDecoder::BytesOf(std::string_view spelling) const {
  std::string text(spelling);
  for (const auto& [from, to] : replacements_) text = ReplaceAll(text, from, to);
  if (byte_fallback_) {
    if (const std::optional<uint8_t> byte = ByteOfFallback(text)) {
      return std::string(1, static_cast<char>(*byte));
    }
  }
  if (byte_level_) {
    if (std::optional<std::string> bytes = BytesOfSpelling(text)) return *std::move(bytes);
  }
  return text;
}

}  // namespace penstock
