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

struct EncodeOptions {
  // Adds what the checkpoint's post-processor adds (a BOS for Llama, nothing for Qwen). Off after a
  // chat template, which writes its own.
  bool add_special_tokens = true;
  // Whether text that spells a special token ("<|im_end|>") becomes that token. On only for text
  // whose author may write control tokens, such as a rendered chat template.
  bool parse_special_tokens = false;
};

// A checkpoint's tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece-style BPE
// with byte fallback (Llama 2, Mistral). What it cannot reproduce is refused by Load, with the
// field and its value. All const methods may be called from any thread at once.
class Tokenizer {
 public:
  // Reads tokenizer.json and, where present, tokenizer_config.json.
  // NOT_FOUND without tokenizer.json; INVALID_ARGUMENT for what is malformed or not supported.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Load(const std::string& directory);
  // `config_json` is tokenizer_config.json, or empty.
  static absl::StatusOr<std::unique_ptr<const Tokenizer>> Parse(std::string_view tokenizer_json,
                                                                std::string_view config_json);
  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // INVALID_ARGUMENT with the byte offset when `text` is not UTF-8. Time grows with n log n at
  // most.
  absl::StatusOr<std::vector<uint32_t>> Encode(std::string_view text,
                                               const EncodeOptions& options = {}) const;
  // Always valid UTF-8: bytes that are not become U+FFFD. Ids without a token give no text.
  std::string Decode(std::span<const uint32_t> ids, bool skip_special_tokens) const;

  // The bytes `id` stands for inside a text (" the", "\xE2\x96" ...), not always whole code points;
  // empty for an id without a token. Lives as long as the tokenizer.
  std::string_view TokenBytes(uint32_t id) const;
  std::optional<uint32_t> FindToken(std::string_view token) const;  // by its spelling in the file

  uint32_t vocab_size() const;  // the highest id + 1; a model's logits may be wider
  bool is_special(uint32_t id) const;
  // As named by tokenizer_config.json; absent where it names none.
  std::optional<uint32_t> bos_id() const;
  std::optional<uint32_t> eos_id() const;
  std::optional<uint32_t> unk_id() const;
  std::optional<uint32_t> pad_id() const;
  // The spellings of the same, for chat templates; empty where absent.
  const std::string& bos_token() const;
  const std::string& eos_token() const;

 private:
  friend class Detokenizer;
  struct Parts;
  explicit Tokenizer(std::unique_ptr<const Parts> parts);

  std::unique_ptr<const Parts> parts_;
};

}  // namespace penstock
