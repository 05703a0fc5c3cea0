#include "model/tokenizer/tokenizer.h"

#include "base/utf8.h"
#include "model/tokenizer/detokenizer.h"
#include "model/tokenizer/tokenizer_parts.h"

namespace penstock {

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::vector<uint32_t>> Tokenizer::Encode(std::string_view text,
                                                        const EncodeOptions& options) const {
  const size_t invalid = FirstInvalidUtf8(text);
  if (invalid != std::string_view::npos) {
    return InvalidArgument("the text is not valid UTF-8 at byte {} of {}", invalid, text.size());
  }
  std::vector<uint32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  const PostProcessor& post = parts_->post_processor;
  if (options.add_special_tokens) ids = post.prefix;
  for (const AddedSplit& split : parts_->added.SplitRaw(text, options.parse_special_tokens)) {
    if (split.id) {
      ids.push_back(*split.id);
      continue;
    }
    const std::string_view part = text.substr(split.begin, split.end - split.begin);
    RETURN_IF_ERROR(parts_->EncodeText(part, split.begin == 0, options.parse_special_tokens, ids));
  }
  if (options.add_special_tokens) {
    ids.insert(ids.end(), post.suffix.begin(), post.suffix.end());
  }
  return ids;
}

// Encodes text between the added tokens that are matched in raw text.
absl::Status Tokenizer::Parts::EncodeText(std::string_view text, bool starts_input,
                                          bool parse_special, std::vector<uint32_t>& ids) const {
  ASSIGN_OR_RETURN(const std::string normalized, normalizer.Apply(text));
  for (const AddedSplit& split : added.SplitNormalized(normalized, parse_special)) {
    if (split.id) {
      ids.push_back(*split.id);
      continue;
    }
    PieceList list;
    list.text = normalized.substr(split.begin, split.end - split.begin);
    list.pieces.push_back({0, list.text.size()});
    list.starts_input = starts_input && split.begin == 0;
    RETURN_IF_ERROR(pre_tokenizer.Apply(list));
    for (const TextSpan& piece : list.pieces) {
      model.Encode(std::string_view(list.text).substr(piece.begin, piece.end - piece.begin), ids);
    }
  }
  return absl::OkStatus();
}

std::string Tokenizer::Decode(std::span<const uint32_t> ids, bool skip_special_tokens) const {
  Detokenizer detokenizer(*this, {.skip_special_tokens = skip_special_tokens});
  std::string text;
  for (uint32_t id : ids) text += detokenizer.Feed(id);
  return text + detokenizer.Flush();
}

std::string_view Tokenizer::TokenBytes(uint32_t id) const {
  return id < parts_->bytes.size() ? std::string_view(parts_->bytes[id]) : std::string_view();
}

std::optional<uint32_t> Tokenizer::FindToken(std::string_view token) const {
  return parts_->Find(token);
}

uint32_t Tokenizer::vocab_size() const { return static_cast<uint32_t>(parts_->bytes.size()); }
bool Tokenizer::is_special(uint32_t id) const {
  return id < parts_->special.size() && parts_->special[id];
}
std::optional<uint32_t> Tokenizer::bos_id() const { return parts_->bos.id; }
std::optional<uint32_t> Tokenizer::eos_id() const { return parts_->eos.id; }
std::optional<uint32_t> Tokenizer::unk_id() const { return parts_->unk.id; }
std::optional<uint32_t> Tokenizer::pad_id() const { return parts_->pad.id; }
const std::string& Tokenizer::bos_token() const { return parts_->bos.spelling; }
const std::string& Tokenizer::eos_token() const { return parts_->eos.spelling; }

}  // namespace penstock
