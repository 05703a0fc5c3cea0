#include <algorithm>

#include "model/gguf/model_text.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_json.h"
#include "model/tokenizer/tokenizer_parts.h"

namespace penstock {
namespace {

absl::Status CheckIds(const std::vector<uint32_t>& ids, size_t size) {
  for (uint32_t id : ids) {
    if (id < size) continue;
    return InvalidArgument("post_processor adds id {}, but there are {} tokens", id, size);
  }
  return absl::OkStatus();
}

// Returns a named token of tokenizer_config.json: a string, or an object with "content".
absl::StatusOr<std::string> NamedToken(const JsonField& config, std::string_view name) {
  const JsonField field = config[name];
  return field.is_object() ? field["content"].String() : field.StringOr("");
}

}  // namespace

std::optional<uint32_t> Tokenizer::Parts::Find(std::string_view spelling) const {
  for (const AddedToken& token : added.tokens()) {
    if (token.content == spelling) return token.id;
  }
  return model.spellings().Find(spelling);
}

std::string_view Tokenizer::Parts::Spelling(uint32_t id) const {
  for (const AddedToken& token : added.tokens()) {
    if (token.id == id) return token.content;
  }
  if (id >= model.spellings().size()) return {};
  return model.spellings().token(id);
}

void Tokenizer::Parts::FillTables() {
  uint32_t size = model.spellings().size();
  for (const AddedToken& token : added.tokens()) size = std::max(size, token.id + 1);
  bytes.resize(size);
  special.resize(size);
  for (uint32_t id = 0; id < model.spellings().size(); ++id) {
    bytes[id] = decoder.BytesOf(model.spellings().token(id));
  }
  for (const AddedToken& token : added.tokens()) {
    bytes[token.id] = decoder.BytesOf(token.content);
    special[token.id] = token.special;
  }
}

absl::StatusOr<Tokenizer::Parts> Tokenizer::Parts::ParseFile(const JsonField& file) {
  ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::Parse(file["normalizer"]));
  ASSIGN_OR_RETURN(PreTokenizer pre_tokenizer, PreTokenizer::Parse(file["pre_tokenizer"]));
  ASSIGN_OR_RETURN(Bpe model, Bpe::Parse(file["model"], pre_tokenizer.byte_level()));
  ASSIGN_OR_RETURN(AddedTokens added,
                   AddedTokens::Parse(file["added_tokens"], model.spellings(), normalizer));
  ASSIGN_OR_RETURN(PostProcessor post, PostProcessor::Parse(file["post_processor"]));
  ASSIGN_OR_RETURN(TokenDecoder decoder, TokenDecoder::Parse(file["decoder"]));
  Parts parts{.added = std::move(added),
              .normalizer = std::move(normalizer),
              .pre_tokenizer = std::move(pre_tokenizer),
              .model = std::move(model),
              .post_processor = std::move(post),
              .decoder = std::move(decoder)};
  parts.FillTables();
  RETURN_IF_ERROR(CheckIds(parts.post_processor.prefix, parts.bytes.size()));
  RETURN_IF_ERROR(CheckIds(parts.post_processor.suffix, parts.bytes.size()));
  return parts;
}

absl::Status Tokenizer::Parts::ParseConfig(const JsonField& config) {
  RETURN_IF_ERROR(config.ExpectObject());
  struct Name {
    const char* field;
    Named& target;
    bool must_exist;  // files often name a pad or unk token that the model lacks
  };
  for (const Name& name : {Name{"bos_token", bos, true}, Name{"eos_token", eos, true},
                           Name{"unk_token", unk, false}, Name{"pad_token", pad, false}}) {
    ASSIGN_OR_RETURN(name.target.spelling, NamedToken(config, name.field));
    if (name.target.spelling.empty()) continue;
    name.target.id = Find(name.target.spelling);
    if (!name.target.id && name.must_exist) {
      return InvalidArgument("{} is {}, which is not a token of tokenizer.json", name.field,
                             name.target.spelling);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Parse(std::string_view tokenizer_json,
                                                                  std::string_view config_json) {
  ASSIGN_OR_RETURN(const nlohmann::json file, ParseJson(tokenizer_json, "tokenizer.json"));
  absl::StatusOr<Parts> parts = Parts::ParseFile(JsonField(file, ""));
  if (!parts.ok()) return Annotate(parts.status(), "tokenizer.json");
  if (!config_json.empty()) {
    ASSIGN_OR_RETURN(const nlohmann::json config, ParseJson(config_json, "tokenizer_config.json"));
    const absl::Status status = parts->ParseConfig(JsonField(config, ""));
    if (!status.ok()) return Annotate(status, "tokenizer_config.json");
  }
  auto owned = std::make_unique<const Parts>(*std::move(parts));
  return std::unique_ptr<const Tokenizer>(new Tokenizer(std::move(owned)));
}

absl::StatusOr<std::unique_ptr<const Tokenizer>> Tokenizer::Load(const std::string& model) {
  ASSIGN_OR_RETURN(const std::string file, ReadModelText(model, "tokenizer.json"));
  const absl::StatusOr<std::string> config = ReadModelText(model, "tokenizer_config.json");
  if (!config.ok() && !absl::IsNotFound(config.status())) return config.status();
  absl::StatusOr<std::unique_ptr<const Tokenizer>> tokenizer =
      Parse(file, config.ok() ? *config : std::string());
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), model);
  return tokenizer;
}

}  // namespace penstock
