#include <algorithm>

#include "base/utf8.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/tokenizer_json.h"

namespace penstock {

absl::StatusOr<Bpe> Bpe::Parse(const JsonField& model, bool byte_level) {
  RETURN_IF_ERROR(model.ExpectObject());
  // Older files omit the type.
  ASSIGN_OR_RETURN(const std::string type, model["type"].StringOr("BPE"));
  if (type != "BPE") return model["type"].Unsupported("BPE");
  Bpe bpe;
  bpe.byte_level_ = byte_level;
  ASSIGN_OR_RETURN(bpe.spellings_, Vocabulary::Parse(model["vocab"]));
  RETURN_IF_ERROR(bpe.ParseFlags(model));
  bpe.FillBytes();
  const JsonField merges = model["merges"];
  RETURN_IF_ERROR(bpe.ParseMerges(merges));
  bpe.whole_ = std::make_unique<std::atomic<Whole>[]>(bpe.spellings_.size());
  return bpe;
}

absl::Status Bpe::ParseFlags(const JsonField& model) {
  ASSIGN_OR_RETURN(byte_fallback_, model["byte_fallback"].BoolOr(false));
  ASSIGN_OR_RETURN(fuse_unk_, model["fuse_unk"].BoolOr(false));
  ASSIGN_OR_RETURN(ignore_merges_, model["ignore_merges"].BoolOr(false));
  const JsonField dropout = model["dropout"];
  if (dropout.present() && dropout.json() != 0) return dropout.Unsupported("null");
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    ASSIGN_OR_RETURN(const std::string value, model[affix].StringOr(""));
    if (!value.empty()) return model[affix].Unsupported("null");
  }
  ASSIGN_OR_RETURN(const std::string unk, model["unk_token"].StringOr(""));
  if (unk.empty()) return absl::OkStatus();
  unk_id_ = spellings_.Find(unk);
  if (!unk_id_) return InvalidArgument("model.unk_token {} is not in model.vocab", unk);
  return absl::OkStatus();
}

void Bpe::FillBytes() {
  fallback_.fill(-1);
  std::vector<std::string> keys(byte_level_ ? spellings_.size() : 0);
  for (uint32_t id = 0; id < spellings_.size(); ++id) {
    const std::string& spelling = spellings_.token(id);
    if (const std::optional<uint8_t> byte = ByteOfFallback(spelling)) {
      // Hugging Face's code looks these tokens up in upper case.
      if (spelling == fmt::format("<0x{:02X}>", *byte)) fallback_[*byte] = static_cast<int32_t>(id);
    }
    if (!byte_level_) continue;
    if (std::optional<std::string> bytes = BytesOfSpelling(spelling)) keys[id] = *std::move(bytes);
  }
  byte_keys_ = Vocabulary(std::move(keys));
}

absl::StatusOr<std::pair<std::string, std::string>> Bpe::ParseMerge(const JsonField& merge) const {
  if (merge.is_array() && merge.size() == 2) {
    ASSIGN_OR_RETURN(std::string left, merge[0].String());
    ASSIGN_OR_RETURN(std::string right, merge[1].String());
    return std::make_pair(std::move(left), std::move(right));
  }
  ASSIGN_OR_RETURN(const std::string text, merge.String());
  const size_t space = text.find(' ');
  if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
    return merge.Unsupported("\"left right\" or [\"left\", \"right\"]");
  }
  return std::make_pair(text.substr(0, space), text.substr(space + 1));
}

absl::Status Bpe::ParseMerges(const JsonField& merges) {
  RETURN_IF_ERROR(merges.ExpectArray());
  merges_.reserve(merges.size());
  can_cut_ = !byte_level_;
  all_known_ = byte_fallback_ &&
               std::none_of(fallback_.begin(), fallback_.end(), [](int32_t id) { return id < 0; });
  for (uint32_t rank = 0; rank < merges.size(); ++rank) {
    ASSIGN_OR_RETURN(const auto parts, ParseMerge(merges[rank]));
    const auto& [left, right] = parts;
    const std::optional<uint32_t> left_id = spellings_.Find(left);
    const std::optional<uint32_t> right_id = spellings_.Find(right);
    const std::optional<uint32_t> id = spellings_.Find(left + right);
    if (!left_id || !right_id || !id) {
      return InvalidArgument("{}[{}] joins {} and {}, but {} is not in model.vocab", merges.path(),
                             rank, left, right,
                             !left_id    ? left
                             : !right_id ? right
                                         : left + right);
    }
    merges_[(static_cast<uint64_t>(*left_id) << 32) | *right_id] = {rank, *id};
    AddJoint(left, right);
  }
  return absl::OkStatus();
}

// Records the two code points that meet where two tokens merge. All adjacent code points inside
// merged tokens meet in some merge.
void Bpe::AddJoint(std::string_view left, std::string_view right) {
  if (byte_level_) return;
  // A merge of byte tokens joins symbols that are not code points of the text, so the text cannot
  // be split.
  if (ByteOfFallback(left) || ByteOfFallback(right)) can_cut_ = false;
  size_t last = left.size() - 1;
  while (last > 0 && (static_cast<uint8_t>(left[last]) & 0xC0) == 0x80) --last;
  const uint64_t left_point = DecodeUtf8(left.substr(last)).code_point;
  joints_.insert((left_point << 32) | DecodeUtf8(right).code_point);
}

}  // namespace penstock
