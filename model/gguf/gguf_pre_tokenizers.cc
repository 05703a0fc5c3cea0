#include "model/gguf/gguf_pre_tokenizers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <vector>

namespace penstock {
namespace {

enum class Form {
  kGpt2,           // openai-community/gpt2
  kDigitsGpt2,     // HuggingFaceTB/SmolLM2-360M-Instruct, smallcloudai/Refact-1_6B-fim
  kLlama3,         // meta-llama/Meta-Llama-3-8B
  kQwen2,          // Qwen/Qwen2-7B
  kO200k,          // openai/gpt-oss-20b
  kTekken,         // mistralai/Mistral-Nemo-Instruct-2407
  kDeepSeekV3,     // deepseek-ai/DeepSeek-V3
  kDeepSeekCoder,  // deepseek-ai/deepseek-coder-6.7b-instruct
  kDeepSeekLlm,    // deepseek-ai/DeepSeek-V2-Lite
  kGpt4,           // allenai/OLMo-2-1124-7B, THUDM/glm-4-9b-hf, zai-org/GLM-4.5
  kGptNeox,        // EleutherAI/gpt-neox-20b
  kFalcon,         // tiiuae/falcon-7b
};

struct NamedForm {
  std::string_view name;
  Form form;
};

// The names of llama.cpp's converter, and the model whose tokenizer.json has the form.
constexpr std::array<NamedForm, 19> kForms = {{{"chatglm-bpe", Form::kGpt4},
                                               {"dbrx", Form::kGpt4},
                                               {"deepseek-coder", Form::kDeepSeekCoder},
                                               {"deepseek-llm", Form::kDeepSeekLlm},
                                               {"deepseek-r1-qwen", Form::kQwen2},
                                               {"deepseek-v3", Form::kDeepSeekV3},
                                               {"falcon", Form::kFalcon},
                                               {"glm4", Form::kGpt4},
                                               {"gpt-2", Form::kGpt2},
                                               {"gpt-4o", Form::kO200k},
                                               {"llama-bpe", Form::kLlama3},
                                               {"llama-v3", Form::kLlama3},
                                               {"llama3", Form::kLlama3},
                                               {"olmo", Form::kGptNeox},
                                               {"qwen2", Form::kQwen2},
                                               {"refact", Form::kDigitsGpt2},
                                               {"smollm", Form::kDigitsGpt2},
                                               {"starcoder", Form::kDigitsGpt2},
                                               {"tekken", Form::kTekken}}};

// The patterns as these tokenizer.json files have them.
constexpr char kLlama3Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|)"
    R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kQwen2Pattern[] = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|)"
                                 R"( ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kO200kPattern[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kTekkenPattern[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|)"
    R"(\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr char kDeepSeekV3Words[] =
    R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|)"
    R"( ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr char kDeepSeekLlmLetters[] =
    R"(\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁ)"
    R"(Ҋ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕ)"
    R"(ἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-ώᾀ-ᾴᾶ-ᾼιῂ-ῄῆ-ῌῐ-ΐῖ-Ί)"
    R"(ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤΩℨK-ℭℯ-ℴℹℼ-ℿⅅ-ⅉ)"
    R"(ⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆ)"
    R"(ﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+)";
constexpr char kDeepSeekLlmSigns[] = R"(\s?[!-/:-~！-／：-～‘-‟\x{3000}-。]+)";

nlohmann::json ByteLevel(bool use_regex) {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", use_regex}};
}

nlohmann::json Split(std::string_view pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", std::string(pattern)}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

nlohmann::json Digits(bool individual = true) {
  return {{"type", "Digits"}, {"individual_digits", individual}};
}

nlohmann::json Punctuation() { return {{"type", "Punctuation"}, {"behavior", "Contiguous"}}; }

nlohmann::json Sequence(std::vector<nlohmann::json> steps) {
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

nlohmann::json StepsOf(Form form) {
  switch (form) {
    case Form::kGpt2:
    case Form::kGptNeox:
      return ByteLevel(true);
    case Form::kDigitsGpt2:
      return Sequence({Digits(), ByteLevel(true)});
    case Form::kFalcon:
      return Sequence({Punctuation(), ByteLevel(true), Digits(false), Split("[0-9][0-9][0-9]")});
    case Form::kLlama3:
    case Form::kGpt4:
      return Sequence({Split(kLlama3Pattern), ByteLevel(false)});
    case Form::kQwen2:
      return Sequence({Split(kQwen2Pattern), ByteLevel(false)});
    case Form::kO200k:
      return Sequence({Split(kO200kPattern), ByteLevel(false)});
    case Form::kTekken:
      return Sequence({Split(kTekkenPattern), ByteLevel(false)});
    case Form::kDeepSeekV3:
      return Sequence({Split(R"(\p{N}{1,3})"), Split("[一-龥\u3040-ゟ゠-ヿ]+"),
                       Split(kDeepSeekV3Words), ByteLevel(false)});
    case Form::kDeepSeekCoder:
      return Sequence({Split("[\r\n]"), Split(R"(\s?\p{L}+)"), Split(R"(\s?\p{P}+)"),
                       Split("[一-龥\u0800-一가-\uD7FF]+"), Digits(), ByteLevel(false)});
    case Form::kDeepSeekLlm:
      return Sequence({Split("[\r\n]"), Split(kDeepSeekLlmLetters), Split(kDeepSeekLlmSigns),
                       Split(R"(\s+$)"), Split("[一-龥\u0800-一가-\uD7FF]+"), Digits(),
                       ByteLevel(false)});
  }
  return {};
}

}  // namespace

std::optional<GgufPreTokenizer> FindGgufPreTokenizer(std::string_view name) {
  const auto known = std::ranges::find(kForms, name, &NamedForm::name);
  if (known == kForms.end()) return std::nullopt;
  const bool whole = known->form == Form::kLlama3 || known->form == Form::kTekken;
  GgufPreTokenizer found = {
      .pre_tokenizer = StepsOf(known->form), .ignore_merges = whole, .adds_bos = whole};
  if (known->form == Form::kQwen2 || known->form == Form::kGptNeox)
    found.normalizer = {{"type", "NFC"}};
  return found;
}

std::string GgufPreTokenizerNames() {
  std::string names;
  for (const NamedForm& form : kForms) {
    names += fmt::format("{}{}", names.empty() ? "" : ", ", form.name);
  }
  return names;
}

}  // namespace penstock
