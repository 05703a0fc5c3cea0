#include "model/gguf/gguf_tokenizer.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "model/gguf/file/gguf_fields.h"
#include "model/gguf/gguf_merges.h"
#include "model/gguf/gguf_pre_tokenizers.h"
#include "model/gguf/gguf_tokens.h"

namespace penstock {
namespace {

constexpr char kModelKey[] = "tokenizer.ggml.model";
constexpr char kPreKey[] = "tokenizer.ggml.pre";
constexpr char kTemplateKey[] = "tokenizer.chat_template";
constexpr char kSpace[] = "\u2581";  // SentencePiece's space
constexpr size_t kMaxMergeCount = size_t{1} << 22;
constexpr size_t kMaxMergeBytes = 4096;
constexpr size_t kMaxTemplateBytes = size_t{1} << 20;
constexpr double kMaxScore = 1e38;

// A template of one text with tokens before and after it.
nlohmann::json Template(const GgufTokens& tokens, bool adds_bos, bool adds_eos) {
  nlohmann::json single = nlohmann::json::array();
  nlohmann::json special = nlohmann::json::object();
  const auto add = [&](uint32_t id) {
    const std::string spelling(tokens.spellings[id]);
    single.push_back({{"SpecialToken", {{"id", spelling}, {"type_id", 0}}}});
    special[spelling] = {{"id", spelling}, {"ids", {id}}, {"tokens", {spelling}}};
  };
  if (adds_bos) add(*tokens.bos);
  single.push_back({{"Sequence", {{"id", "A"}, {"type_id", 0}}}});
  if (adds_eos) add(*tokens.eos);
  return {{"type", "TemplateProcessing"},
          {"single", single},
          {"pair", nlohmann::json::array()},
          {"special_tokens", special}};
}

// Null if nothing is added. A token that is to be added must exist.
nlohmann::json PostProcessor(const GgufTokens& tokens, bool adds_bos_by_default,
                             GgufFields& fields) {
  constexpr char kAddBos[] = "tokenizer.ggml.add_bos_token";
  constexpr char kAddEos[] = "tokenizer.ggml.add_eos_token";
  const bool adds_bos = fields.Bool(kAddBos, adds_bos_by_default);
  const bool adds_eos = fields.Bool(kAddEos, false);
  const auto exists = [&](std::optional<uint32_t> id) {
    return id && !tokens.spellings[*id].empty();
  };
  if (adds_bos && !exists(tokens.bos)) {
    fields.Refuse("tokenizer.ggml.bos_token_id", "must name a token: it is added to prompts");
  }
  if (adds_eos && !exists(tokens.eos)) {
    fields.Refuse("tokenizer.ggml.eos_token_id", "must name a token: it is added to prompts");
  }
  if (!fields.status().ok() || (!adds_bos && !adds_eos)) return {};
  return Template(tokens, adds_bos, adds_eos);
}

nlohmann::json Bpe(const GgufTokens& tokens, nlohmann::json merges) {
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", VocabularyOf(tokens)},
          {"merges", std::move(merges)}};
}

nlohmann::json Whole(const GgufTokens& tokens) {
  return {{"version", "1.0"},      {"truncation", nullptr},
          {"padding", nullptr},    {"added_tokens", AddedTokensOf(tokens)},
          {"normalizer", nullptr}, {"pre_tokenizer", nullptr}};
}

absl::StatusOr<nlohmann::json> ByteLevelTokenizer(const GgufTokens& tokens, GgufFields& fields) {
  const std::string name = fields.String(kPreKey, 64);
  const auto pre = FindGgufPreTokenizer(name);
  if (!pre) fields.Fail(kPreKey, "one of " + GgufPreTokenizerNames());
  const auto merges = fields.Strings("tokenizer.ggml.merges", kMaxMergeCount, kMaxMergeBytes);
  RETURN_IF_ERROR(fields.status());
  nlohmann::json list = nlohmann::json::array();
  for (const std::string_view merge : merges) list.push_back(std::string(merge));
  nlohmann::json whole = Whole(tokens);
  whole["normalizer"] = pre->normalizer;
  whole["pre_tokenizer"] = pre->pre_tokenizer;
  whole["post_processor"] = PostProcessor(tokens, pre->adds_bos, fields);
  RETURN_IF_ERROR(fields.status());
  whole["decoder"] = {{"type", "ByteLevel"}};
  whole["model"] = Bpe(tokens, std::move(list));
  whole["model"]["ignore_merges"] = pre->ignore_merges;
  return whole;
}

absl::StatusOr<nlohmann::json> ScoredMerges(const GgufTokens& tokens, GgufFields& fields) {
  const std::vector<double> scores =
      fields.Floats("tokenizer.ggml.scores", tokens.spellings.size(), -kMaxScore, kMaxScore);
  RETURN_IF_ERROR(fields.status());
  std::vector<ScoredPiece> pieces;
  for (size_t id = 0; id < scores.size(); id++) {
    if (tokens.kinds[id] != GgufTokens::Kind::kNormal || !tokens.InVocabulary(id)) continue;
    pieces.push_back({tokens.spellings[id], static_cast<int64_t>(id), scores[id]});
  }
  ASSIGN_OR_RETURN(const std::vector<PieceMerge> merges, MergesByScore(pieces));
  nlohmann::json list = nlohmann::json::array();
  for (const PieceMerge& merge : merges) {
    list.push_back({std::string(merge.left), std::string(merge.right)});
  }
  return list;
}

nlohmann::json ReplaceStep(const char* from, const char* to) {
  return {{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}};
}

nlohmann::json SpaceNormalizer(bool adds_space) {
  nlohmann::json steps = nlohmann::json::array();
  if (adds_space) steps.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  steps.push_back(ReplaceStep(" ", kSpace));
  return {{"type", "Sequence"}, {"normalizers", steps}};
}

nlohmann::json SpaceDecoder(bool adds_space) {
  nlohmann::json steps = nlohmann::json::array();
  steps.push_back(ReplaceStep(kSpace, " "));
  steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (adds_space) {
    steps.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", steps}};
}

// As Hugging Face's converter writes Llama 2's tokenizer, which is also what llama.cpp does: a
// space precedes every text between special tokens.
absl::StatusOr<nlohmann::json> SentencePieceTokenizer(const GgufTokens& tokens,
                                                      GgufFields& fields) {
  constexpr char kRemoveSpaces[] = "tokenizer.ggml.remove_extra_whitespaces";
  if (fields.Bool(kRemoveSpaces, false)) fields.Fail(kRemoveSpaces, "false");
  const bool adds_space = fields.Bool("tokenizer.ggml.add_space_prefix", true);
  ASSIGN_OR_RETURN(nlohmann::json merges, ScoredMerges(tokens, fields));
  nlohmann::json whole = Whole(tokens);
  whole["normalizer"] = SpaceNormalizer(adds_space);
  whole["post_processor"] = PostProcessor(tokens, true, fields);
  RETURN_IF_ERROR(fields.status());
  whole["decoder"] = SpaceDecoder(adds_space);
  whole["model"] = Bpe(tokens, std::move(merges));
  whole["model"]["byte_fallback"] = true;
  whole["model"]["fuse_unk"] = true;
  if (tokens.unk && tokens.InVocabulary(*tokens.unk)) {
    whole["model"]["unk_token"] = std::string(tokens.spellings[*tokens.unk]);
  }
  return whole;
}

// NOT_FOUND if the file has no tokenizer.
absl::StatusOr<std::string> ModelOf(const GgufFile& file) {
  if (file.Find(kModelKey) == nullptr) {
    return NotFound("{} has no tokenizer: key \"{}\" is missing", file.name, kModelKey);
  }
  GgufFields fields(file);
  const std::string model = fields.String(kModelKey, 64);
  if (model != "gpt2" && model != "llama") {
    fields.Fail(kModelKey, "gpt2 (byte-level BPE) or llama (SentencePiece BPE)");
  }
  RETURN_IF_ERROR(fields.status());
  return model;
}

}  // namespace

absl::StatusOr<std::string> GgufTokenizerJson(const GgufFile& file) {
  ASSIGN_OR_RETURN(const std::string model, ModelOf(file));
  ASSIGN_OR_RETURN(const GgufTokens tokens, ReadGgufTokens(file));
  GgufFields fields(file);
  ASSIGN_OR_RETURN(const nlohmann::json whole, model == "gpt2"
                                                   ? ByteLevelTokenizer(tokens, fields)
                                                   : SentencePieceTokenizer(tokens, fields));
  return whole.dump();
}

absl::StatusOr<std::string> GgufTokenizerConfigJson(const GgufFile& file) {
  RETURN_IF_ERROR(ModelOf(file).status());
  ASSIGN_OR_RETURN(const GgufTokens tokens, ReadGgufTokens(file));
  nlohmann::json config = nlohmann::json::object();
  const auto name = [&](const char* key, std::optional<uint32_t> id) {
    if (id && !tokens.spellings[*id].empty()) config[key] = std::string(tokens.spellings[*id]);
  };
  name("bos_token", tokens.bos);
  name("eos_token", tokens.eos);
  name("unk_token", tokens.unk);
  name("pad_token", tokens.pad);
  GgufFields fields(file);
  if (fields.Has(kTemplateKey))
    config["chat_template"] = fields.String(kTemplateKey, kMaxTemplateBytes);
  RETURN_IF_ERROR(fields.status());
  return config.dump();
}

}  // namespace penstock
