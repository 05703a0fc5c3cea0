#include "model/tokenizer/tokenizer_post.h"

#include "model/tokenizer/bpe_vocabulary.h"
#include "model/tokenizer/tokenizer_json.h"

namespace penstock {
namespace {

constexpr size_t kMaxTemplateIds = 1024;

// Appends the ids of one {"SpecialToken": {"id": "<s>"}} of a template.
absl::Status AppendSpecial(const JsonField& post, const JsonField& part,
                           std::vector<uint32_t>& ids) {
  ASSIGN_OR_RETURN(const std::string name, part["id"].String());
  const JsonField special = post["special_tokens"][name]["ids"];
  RETURN_IF_ERROR(special.ExpectArray());
  for (size_t i = 0; i < special.size(); ++i) {
    ASSIGN_OR_RETURN(const uint32_t id, special[i].Index(kMaxTokenId));
    ids.push_back(id);
  }
  if (ids.size() <= kMaxTemplateIds) return absl::OkStatus();
  return InvalidArgument("{} adds more than {} tokens", post.path(), kMaxTemplateIds);
}

absl::StatusOr<PostProcessor> ParseTemplate(const JsonField& post) {
  PostProcessor out;
  const JsonField parts = post["single"];
  RETURN_IF_ERROR(parts.ExpectArray());
  bool after_text = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const JsonField part = parts[i];
    if (part["SpecialToken"].present()) {
      RETURN_IF_ERROR(
          AppendSpecial(post, part["SpecialToken"], after_text ? out.suffix : out.prefix));
      continue;
    }
    ASSIGN_OR_RETURN(const std::string sequence, part["Sequence"]["id"].String());
    if (sequence != "A" || after_text) return part["Sequence"]["id"].Unsupported("one \"A\"");
    after_text = true;
  }
  if (!after_text) return InvalidArgument("{} has no Sequence A", parts.path());
  return out;
}

}  // namespace

absl::StatusOr<PostProcessor> PostProcessor::Parse(const JsonField& field) {
  if (!field.present()) return PostProcessor{};
  ASSIGN_OR_RETURN(const std::string type, field["type"].String());
  if (type == "TemplateProcessing") return ParseTemplate(field);
  if (type == "ByteLevel") return PostProcessor{};  // adjusts offsets only
  if (type != "Sequence") {
    return field["type"].Unsupported("ByteLevel, Sequence, TemplateProcessing");
  }
  const JsonField parts = field["processors"];
  RETURN_IF_ERROR(parts.ExpectArray());
  PostProcessor out;
  for (size_t i = 0; i < parts.size(); ++i) {
    const JsonField part = parts[i];
    ASSIGN_OR_RETURN(const std::string part_type, part["type"].String());
    if (part_type == "ByteLevel") continue;
    if (part_type != "TemplateProcessing" || !out.prefix.empty() || !out.suffix.empty()) {
      return part["type"].Unsupported("ByteLevel, and one TemplateProcessing");
    }
    ASSIGN_OR_RETURN(out, ParseTemplate(part));
  }
  return out;
}

}  // namespace penstock
