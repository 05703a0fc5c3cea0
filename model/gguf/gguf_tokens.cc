#include "model/gguf/gguf_tokens.h"

#include <string>
#include <unordered_map>

#include "base/printable_name.h"
#include "model/gguf/file/gguf_fields.h"
#include "model/gguf/gguf_config.h"

namespace penstock {
namespace {

constexpr size_t kMaxTokens = size_t{1} << 21;
constexpr size_t kMaxTokenBytes = 1024;
constexpr char kTokensKey[] = "tokenizer.ggml.tokens";

// The names of special ids.
std::optional<uint32_t> ReadSpecialId(std::string_view key, size_t tokens, GgufFields& fields) {
  if (!fields.Has(key)) return std::nullopt;
  return static_cast<uint32_t>(fields.Int(key, 0, static_cast<int64_t>(tokens) - 1));
}

std::optional<uint32_t> FirstUnknown(const GgufTokens& tokens) {
  for (size_t id = 0; id < tokens.kinds.size(); id++) {
    if (tokens.kinds[id] == GgufTokens::Kind::kUnknown) return static_cast<uint32_t>(id);
  }
  return std::nullopt;
}

void ReadKinds(GgufFields& fields, GgufTokens& tokens) {
  const size_t count = tokens.spellings.size();
  for (const int64_t kind : fields.Ints("tokenizer.ggml.token_type", count, 1, 6)) {
    tokens.kinds.push_back(static_cast<GgufTokens::Kind>(kind));
  }
  // Converters fill ids without a token with unused ones ("[PAD151936]").
  for (size_t id = 0; id < count; id++) {
    if (tokens.kinds[id] == GgufTokens::Kind::kUnused) tokens.spellings[id] = {};
    if (IsTurnMarker(tokens.spellings[id])) tokens.kinds[id] = GgufTokens::Kind::kControl;
  }
}

absl::Status ReadSpecials(const GgufFile& file, GgufFields& fields, GgufTokens& tokens) {
  const size_t count = tokens.spellings.size();
  tokens.bos = ReadSpecialId("tokenizer.ggml.bos_token_id", count, fields);
  tokens.eos = ReadSpecialId("tokenizer.ggml.eos_token_id", count, fields);
  tokens.unk = ReadSpecialId("tokenizer.ggml.unknown_token_id", count, fields);
  tokens.pad = ReadSpecialId("tokenizer.ggml.padding_token_id", count, fields);
  RETURN_IF_ERROR(fields.status());
  if (!tokens.unk) tokens.unk = FirstUnknown(tokens);
  for (size_t id = 0; id < count; id++) {
    tokens.special.push_back(tokens.kinds[id] == GgufTokens::Kind::kControl ||
                             tokens.kinds[id] == GgufTokens::Kind::kUnknown);
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> ends, GgufEndTokens(file));
  for (const int64_t id : ends) {
    if (static_cast<size_t>(id) >= count) {
      return InvalidArgument("{}: token {} ends an answer, but there are {} tokens", file.name, id,
                             count);
    }
    tokens.special[static_cast<size_t>(id)] = true;
  }
  if (tokens.bos) tokens.special[*tokens.bos] = true;
  return absl::OkStatus();
}

absl::Status CheckUnique(const GgufFile& file, const GgufTokens& tokens) {
  std::unordered_map<std::string_view, size_t> ids;
  for (size_t id = 0; id < tokens.spellings.size(); id++) {
    if (tokens.spellings[id].empty()) continue;
    const auto [first, added] = ids.emplace(tokens.spellings[id], id);
    if (added) continue;
    return InvalidArgument("{}: key \"{}\" has {} twice, as {} and {}", file.name, kTokensKey,
                           PrintableName(tokens.spellings[id]), first->second, id);
  }
  return absl::OkStatus();
}

// A prompt must not have ids that the embedding table lacks.
absl::Status CheckTable(const GgufFile& file, const GgufTokens& tokens) {
  const GgufTensor* table = file.FindTensor("token_embd.weight");
  if (table == nullptr) return absl::OkStatus();
  const auto rows = static_cast<size_t>(table->shape[0]);
  if (tokens.spellings.size() <= rows) return absl::OkStatus();
  return InvalidArgument("{}: key \"{}\" has {} tokens, but token_embd.weight has {} rows",
                         file.name, kTokensKey, tokens.spellings.size(), rows);
}

}  // namespace

bool GgufTokens::InVocabulary(size_t id) const {
  return !spellings[id].empty() && (kinds[id] == Kind::kUnknown || !special[id]) &&
         kinds[id] != Kind::kControl && kinds[id] != Kind::kUserDefined;
}

absl::StatusOr<GgufTokens> ReadGgufTokens(const GgufFile& file) {
  GgufFields fields(file);
  GgufTokens tokens;
  tokens.spellings = fields.Strings(kTokensKey, kMaxTokens, kMaxTokenBytes);
  RETURN_IF_ERROR(fields.status());
  if (tokens.spellings.empty()) fields.Fail(kTokensKey, "at least one token");
  ReadKinds(fields, tokens);
  tokens.strips_right = fields.String("general.architecture", 64, "") == "phi3" &&
                        fields.String("tokenizer.ggml.model", 64, "") == "llama";
  RETURN_IF_ERROR(fields.status());
  RETURN_IF_ERROR(ReadSpecials(file, fields, tokens));
  RETURN_IF_ERROR(CheckUnique(file, tokens));
  RETURN_IF_ERROR(CheckTable(file, tokens));
  return tokens;
}

bool GgufTokens::StripsRight(size_t id) const {
  return strips_right && special[id] && spellings[id] != "<unk>" && spellings[id] != "<s>" &&
         spellings[id] != "<|endoftext|>";
}

nlohmann::json AddedTokensOf(const GgufTokens& tokens) {
  nlohmann::json added = nlohmann::json::array();
  for (size_t id = 0; id < tokens.spellings.size(); id++) {
    const bool user_defined = tokens.kinds[id] == GgufTokens::Kind::kUserDefined;
    if (tokens.spellings[id].empty() || (!tokens.special[id] && !user_defined)) continue;
    added.push_back({{"id", id},
                     {"content", std::string(tokens.spellings[id])},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", tokens.StripsRight(id)},
                     {"normalized", false},
                     {"special", static_cast<bool>(tokens.special[id])}});
  }
  return added;
}

nlohmann::json VocabularyOf(const GgufTokens& tokens) {
  nlohmann::json vocabulary = nlohmann::json::object();
  for (size_t id = 0; id < tokens.spellings.size(); id++) {
    if (tokens.InVocabulary(id)) vocabulary[std::string(tokens.spellings[id])] = id;
  }
  return vocabulary;
}

}  // namespace penstock
