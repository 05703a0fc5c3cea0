#include "model/tokenizer/detokenizer.h"

#include "base/utf8.h"
#include "model/tokenizer/marker_tokens.h"
#include "model/tokenizer/tokenizer_parts.h"

namespace penstock {

Detokenizer::Detokenizer(const Tokenizer& tokenizer, DetokenizerOptions options)
    : tokenizer_(tokenizer),
      options_(options),
      first_token_(!options.continues_text),
      strip_left_(options.continues_text ? 0 : tokenizer.parts_->decoder.strip_left()) {}

std::string Detokenizer::Feed(uint32_t id) {
  const Tokenizer::Parts& parts = *tokenizer_.parts_;
  if (options_.skip_special_tokens && tokenizer_.is_special(id) &&
      !(options_.show_markers && IsMarkerToken(parts.bytes[id]))) {
    return {};
  }
  if (id >= parts.bytes.size()) return {};
  const std::optional<std::string> first_bytes =
      first_token_ ? parts.decoder.BytesOfFirst(parts.Spelling(id)) : std::nullopt;
  first_token_ = false;
  std::string_view bytes = first_bytes ? std::string_view(*first_bytes) : parts.bytes[id];
  while (strip_left_ > 0 && !bytes.empty()) {
    strip_left_ = bytes[0] == ' ' ? strip_left_ - 1 : 0;
    if (bytes[0] == ' ') bytes.remove_prefix(1);
  }
  pending_.append(bytes);
  return TakeComplete(/*at_end=*/false);
}

std::string Detokenizer::Flush() { return TakeComplete(/*at_end=*/true); }

std::string Detokenizer::TakeComplete(bool at_end) {
  std::string text;
  std::string_view rest = pending_;
  while (!rest.empty()) {
    const Utf8Step step = DecodeUtf8(rest);
    if (step.kind == Utf8Step::Kind::kIncomplete && !at_end) break;
    const bool valid = step.kind == Utf8Step::Kind::kValid;
    text += valid ? rest.substr(0, step.length) : kReplacementCharacter;
    rest.remove_prefix(step.length);
  }
  pending_ = std::string(rest);
  return text;
}

}  // namespace penstock
