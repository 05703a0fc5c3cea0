#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// Options of Tokenizer::Encode.
struct EncodeOptions {
  // Adds the tokens of the checkpoint's post-processor (BOS for Llama, none for Qwen). Set to false
  // after a chat template, which writes these tokens itself.
  bool add_special_tokens = true;
  // Parses text that spells a special token ("<|im_end|>") as that token. Set to true only for text
  // whose author may write control tokens, such as a rendered chat template.
  bool parse_special_tokens = false;
};

// A checkpoint's tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-style BPE
// with byte fallback (Llama 2, Mistral). Load refuses a tokenizer whose results it cannot
// reproduce, and names the field and its value. Immutable: any thread may call the const methods
// concurrently.
//
// This room, model/tokenizer, turns text into token ids and back, as Hugging Face's tokenizers do,
// and finds stop strings. It may use base/ and model/gguf only. It does not know requests,
// templates or the forward pass.
class Tokenizer {
 public:
  // Reads tokenizer.json and, if present, tokenizer_config.json of a directory, or what a GGUF file
  // has in their place. Returns NOT_FOUND without tokenizer.json, and INVALID_ARGUMENT for a
  // malformed or unsupported field.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(const std::string& model);
  // `config_json` is the text of tokenizer_config.json, or empty.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Parse(std::string_view tokenizer_json,
                                                                std::string_view config_json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Returns INVALID_ARGUMENT with the byte offset if `text` is not valid UTF-8. Takes at most O(n
  // log n) time.
  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text,
                                               const EncodeOptions& options = {}) const;
  // Returns valid UTF-8 always: invalid bytes become U+FFFD. Ids without a token yield no text.
  std::string Decode(std::span<const uint32_t> ids, bool skip_special_tokens) const;

  // The bytes that `id` stands for inside a text (" the", "\xE2\x96"), not always whole code
  // points; empty for an id without a token. Valid as long as the tokenizer.
  std::string_view TokenBytes(uint32_t id) const;
  // Looks a token up by its spelling in tokenizer.json.
  std::optional<uint32_t> FindToken(std::string_view token) const;

  uint32_t vocab_size() const;  // highest id + 1; a model's logits may be wider
  bool is_special(uint32_t id) const;
  // The special tokens that tokenizer_config.json names; absent if it names none.
  std::optional<uint32_t> bos_id() const;
  std::optional<uint32_t> eos_id() const;
  std::optional<uint32_t> unk_id() const;
  std::optional<uint32_t> pad_id() const;
  // Their spellings, for chat templates; empty if absent.
  const std::string& bos_token() const;
  const std::string& eos_token() const;

 private:
  friend class Detokenizer;
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

}  // namespace penstock
